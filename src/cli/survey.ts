// One look at everything: what `status` shows. Reads only, and is pure from the look on.
import type { Engine } from "../engine/engine.ts";
import type { IncidentSummary } from "../recovery/incident.ts";
import type { KindCounts } from "../stores/port.ts";
import { type Advice, advise } from "./advice.ts";
import { type Deaths, type KnownWorker, knownWorker, works } from "./lookup.ts";

/** What one look finds. */
export interface Look {
  readonly at: number;
  readonly store: {
    readonly ok: boolean;
    readonly detail: Readonly<Record<string, string | number | boolean>>;
    /** Who has held the write lock all the while; null: nobody. */
    readonly blockedBy: { readonly pid: number; readonly command: string } | null;
  };
  readonly kinds: readonly KindCounts[];
  readonly workers: readonly KnownWorker[];
  readonly incidents: readonly IncidentSummary[];
  /** When the latest of the quarantined jobs was put there; null: there is none. */
  readonly lastQuarantinedAt: number | null;
  /** How many of them are there because what is stored of them is damaged. */
  readonly corruptCount: number;
}

export interface KindStatus extends KindCounts {
  /** Live workers that know the kind. */
  readonly liveWorkers: number;
  /** Jobs that succeeded per second since the look before; null: this is the first. */
  readonly perSecond: number | null;
}

/** `outlive status --json`. */
export interface Status {
  /** False: something needs a person. */
  readonly ok: boolean;
  readonly at: number;
  readonly store: Look["store"];
  readonly kinds: readonly KindStatus[];
  readonly workers: readonly KnownWorker[];
  readonly incidents: readonly IncidentSummary[];
  readonly advice: readonly Advice[];
}

const MOST_INCIDENTS = 5;
/** The newest quarantined jobs that are looked at. Whoever has more has a person's work anyway. */
const MOST_QUARANTINED = 1_000;

export async function look(engine: Engine, now: () => number): Promise<Look> {
  const [health, deaths, incidents] = await Promise.all([
    engine.health(),
    engine.operator.deaths(),
    engine.incidents({ limit: MOST_INCIDENTS }),
  ]);
  const at = now();
  return {
    at,
    store: { ok: health.ok, detail: health.store, blockedBy: await engine.operator.blocker() },
    kinds: health.kinds,
    workers: withLeftovers(health.workers, deaths).map((worker) => knownWorker(worker, deaths, at)),
    incidents,
    ...(await quarantine(engine, health.kinds)),
  };
}

/** Pure: two looks make a rate. */
export function statusOf(look: Look, before: Look | null, maxAgeMs: number): Status {
  const { at, store, workers, incidents } = look;
  const kinds = look.kinds.map((kind) => ({
    ...kind,
    liveWorkers: workers.filter((worker) => works(worker) && worker.kinds.includes(kind.kind)).length,
    perSecond: rate(kind, at, before),
  }));
  const advice = advise({ ...look, kinds }, maxAgeMs);
  return { ok: !advice.some(({ needsPerson }) => needsPerson), at, store, kinds, workers, incidents, advice };
}

/** Null also if the retention took more than was added: then the difference says nothing. */
function rate(kind: KindCounts, at: number, before: Look | null): number | null {
  const was = before?.kinds.find(({ kind: name }) => name === kind.kind);
  if (!before || !was || at <= before.at || kind.succeeded < was.succeeded) return null;
  return ((kind.succeeded - was.succeeded) * 1_000) / (at - before.at);
}

/** Also workers that are over and still hold jobs. */
function withLeftovers(workers: readonly Deaths[number]["worker"][], deaths: Deaths): Deaths[number]["worker"][] {
  const there = new Set(workers.map(({ id }) => id));
  return [...workers, ...deaths.map(({ worker }) => worker).filter(({ id }) => !there.has(id))];
}

async function quarantine(
  engine: Engine,
  kinds: readonly KindCounts[],
): Promise<Pick<Look, "lastQuarantinedAt" | "corruptCount">> {
  if (kinds.every(({ quarantined }) => quarantined === 0)) return { lastQuarantinedAt: null, corruptCount: 0 };
  const { jobs } = await engine.list({ state: "quarantined", limit: MOST_QUARANTINED });
  return {
    lastQuarantinedAt: jobs.reduce<number | null>((last, { finishedAt }) => Math.max(last ?? 0, finishedAt ?? 0), null),
    corruptCount: jobs.filter(({ lastOutcome }) => lastOutcome === "corrupt").length,
  };
}
