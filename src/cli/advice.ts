// What `status` knows: one survey of everything, and what to do next. Advice names everything that is wrong or unusual, the worst first,
// each with the command that helps. Pure, except for the survey itself, which only reads.
import type { Engine } from "../engine/engine.ts";
import { shellWord } from "../job/text.ts";
import { humanMs } from "../job/time.ts";
import type { IncidentSummary } from "../recovery/incident.ts";
import type { SchedulesReview } from "../index.ts";
import type { KindCounts } from "../stores/port.ts";
import { type Deaths, type KnownWorker, knownWorker, works } from "./lookup.ts";
import { count, thousands } from "./words.ts";

interface Advice {
  /** The reason; stable, for programs. */
  readonly code:
    | "store-not-ok"
    | "store-blocked"
    | "no-worker"
    | "stranded"
    | "too-old"
    | "quarantined"
    | "worker-gone"
    | "worker-silent"
    | "worker-blocked"
    | "failing"
    | "dead"
    | "paused"
    | "schedules-undeclared"
    | "time-zones-differ";
  /** Sets the exit code of `status --check`. */
  readonly needsPerson: boolean;
  /** The kinds it is about; empty: it is about none in particular. */
  readonly kinds: readonly string[];
  readonly worker: string | null;
  /** The reason as a sentence, for people. */
  readonly text: string;
  /** A command, or a sentence if none helps. */
  readonly next: string;
}

const DAY_MS = 86_400_000;

type SurveyWithStatus = Omit<Survey, "kinds"> & { readonly kinds: readonly KindStatus[] };

function advise(found: SurveyWithStatus, maxAgeMs: number): Advice[] {
  // While a process holds the write lock no other can beat or claim: silence means nothing then, and one action helps all.
  if (found.store.blockedBy) return [...ofStore(found.store), ...ofQuarantine(found)];
  const advice = [
    ...ofStore(found.store),
    ...ofIdle(found),
    ...found.kinds.flatMap((kind) => ofLate(kind, maxAgeMs)),
    ...ofQuarantine(found),
    ...found.workers.flatMap((worker) => ofWorker(worker, found.workers.some(works))),
    ...ofFailing(found.kinds),
    ...ofDead(found.kinds),
    ...ofPaused(found.kinds),
    ...(found.workers.some(works) ? [...ofUndeclared(found.schedules), ...ofZoneData(found.schedules)] : []),
  ];
  return [...advice.filter(({ needsPerson }) => needsPerson), ...advice.filter(({ needsPerson }) => !needsPerson)];
}

type Wording = Pick<Advice, "code" | "text" | "next"> & Partial<Advice>;
const say = (said: Wording): Advice => ({ needsPerson: false, kinds: [], worker: null, ...said });

function ofStore(store: Survey["store"]): Advice[] {
  if (!store.ok)
    return [
      say({
        code: "store-not-ok",
        needsPerson: true,
        text: "The store reports a problem.",
        next: "outlive check --integrity",
      }),
    ];
  if (!store.blockedBy) return [];
  const { pid, command } = store.blockedBy;
  return [
    say({
      code: "store-blocked",
      needsPerson: true,
      text: `Process ${pid} (${command || "unknown command"}) holds the store's write lock and does not release it.`,
      next: `Check process ${pid}; if it is frozen, end it: nothing is lost.`,
    }),
  ];
}

/** A paused kind waits on purpose. */
function ofIdle({ kinds, workers }: SurveyWithStatus): Advice[] {
  const idle = kinds.filter(({ ready, paused, liveWorkers }) => ready > 0 && !paused && liveWorkers === 0);
  if (idle.length === 0) return [];
  const ready = idle.reduce((sum, kind) => sum + kind.ready, 0);
  const reason = workers.some(works)
    ? `no live worker knows ${idle.length === 1 ? "that kind" : "those kinds"}`
    : "no worker is alive";
  return [
    say({
      code: "no-worker",
      needsPerson: true,
      kinds: namesOf(idle),
      text: `${count(ready, "job is", "jobs are")} ready (${listed(idle, (kind) => kind.ready)}), and ${reason}.`,
      next: "outlive work",
    }),
  ];
}

function ofLate(kind: KindStatus, maxAgeMs: number): Advice[] {
  const { kind: name, ready, oldestReadyMs } = kind;
  if (kind.paused || kind.liveWorkers === 0 || oldestReadyMs === null || oldestReadyMs <= maxAgeMs) return [];
  return [
    say({
      code: "too-old",
      needsPerson: true,
      kinds: [name],
      text: `The oldest ready job of ${name} has waited for ${humanMs(oldestReadyMs)}; ${count(ready, "is", "are")} ready.`,
      next: "Start more workers (outlive work), or raise their concurrency.",
    }),
  ];
}

function ofQuarantine({ kinds, at, lastQuarantinedAt, corruptCount }: SurveyWithStatus): Advice[] {
  const total = kinds.reduce((sum, { quarantined }) => sum + quarantined, 0);
  if (total === 0) return [];
  const age = lastQuarantinedAt === null ? null : Math.max(0, at - lastQuarantinedAt);
  const when = (which: string): string => (age === null ? "" : ` (${which}${humanMs(age)} ago)`);
  return [
    say({
      code: "quarantined",
      needsPerson: age !== null && age < DAY_MS,
      text:
        total === 1
          ? `1 job is quarantined${when("")}: ${corruptCount > 0 ? "its stored data is damaged" : "its worker died while it ran alone"}.`
          : `${thousands(total)} jobs are quarantined${when("the latest ")}: ${whyQuarantined(total, corruptCount)}.`,
      next: corruptCount > 0 ? "outlive quarantine list; outlive check --integrity" : "outlive quarantine list",
    }),
  ];
}

function whyQuarantined(total: number, corrupt: number): string {
  if (corrupt === 0) return "their workers died while they ran alone";
  const damaged =
    corrupt === total ? "their stored data is damaged" : `the stored data of ${thousands(corrupt)} is damaged`;
  return corrupt === total ? damaged : `${damaged}, the workers of the others died while they ran alone`;
}

/** A dead worker's jobs are taken by any live one; without a live one they wait for a person. */
function ofWorker(worker: KnownWorker, anyLive: boolean): Advice[] {
  const { id, pid, known, heldCount, heartbeatAgeMs, leaseMs, loopLagMs } = worker;
  const held = count(heldCount, "job");
  if (known === "gone" || known === "lost" || known === "silent" || known === "stopped") {
    const how =
      known === "silent"
        ? `has been silent for ${humanMs(heartbeatAgeMs)} (its lease is ${humanMs(leaseMs)})`
        : known === "lost"
          ? "is out of contact"
          : `is ${known}`;
    const stranded = heldCount > 0 && !anyLive;
    return [
      say({
        code: stranded ? "stranded" : known === "silent" ? "worker-silent" : "worker-gone",
        needsPerson: stranded,
        worker: id,
        text: `Worker ${id} (pid ${pid}) ${how} and holds ${held}${stranded ? "; no live worker can take them" : ""}.`,
        next: `${known === "silent" ? "outlive recover --wait" : "outlive recover"}${stranded ? ", then: outlive work" : ""}`,
      }),
    ];
  }
  if (known !== "blocked") return [];
  return [
    say({
      code: "worker-blocked",
      worker: id,
      text: `The event loop of worker ${id} (pid ${pid}) has been blocked for ${humanMs(loopLagMs)}; it holds ${held}.`,
      next: "outlive jobs --state running",
    }),
  ];
}

function ofFailing(all: readonly KindStatus[]): Advice[] {
  return all.flatMap(({ kind, failing }) =>
    failing === null
      ? []
      : say({
          code: "failing",
          kinds: [kind],
          text: `${count(failing.jobs, "job")} of ${kind} failed and ${failing.jobs === 1 ? "waits" : "wait"} for another attempt; the latest: ${failing.lastError}`,
          next: `outlive job ${shellWord(failing.latest)}`,
        }),
  );
}

function ofDead(all: readonly KindStatus[]): Advice[] {
  const kinds = all.filter(({ dead }) => dead > 0);
  if (kinds.length === 0) return [];
  const dead = kinds.reduce((sum, kind) => sum + kind.dead, 0);
  const filter = `--state dead${kinds.length === 1 ? ` --kind ${shellWord(kinds[0]!.kind)}` : ""}`;
  return [
    say({
      code: "dead",
      kinds: namesOf(kinds),
      text: `${count(dead, "job is", "jobs are")} dead (${listed(kinds, (kind) => kind.dead)}).`,
      next: `outlive jobs ${filter}, then: outlive retry ${filter}`,
    }),
  ];
}

function ofPaused(all: readonly KindStatus[]): Advice[] {
  const kinds = all.filter(({ paused }) => paused);
  const how = ({ pause }: KindStatus): string => {
    if (pause === undefined) return "";
    const end = pause.until === null ? "" : ` until ${new Date(pause.until).toISOString()}`;
    return `${pause.reason === null ? "" : ` (${pause.reason})`} by ${pause.by}${end}`;
  };
  return kinds.map((status) => {
    const { kind, ready } = status;
    return say({
      code: "paused",
      kinds: [kind],
      text: `The kind ${kind} is paused${how(status)}; ${count(ready, "job waits", "jobs wait")}.`,
      next: `outlive resume ${shellWord(kind)}`,
    });
  });
}

/** While no worker is there, no schedule is declared: that says nothing of a deploy. */
function ofUndeclared({ undeclared: names }: SchedulesReview): Advice[] {
  if (names.length === 0) return [];
  const named = names.slice(0, MAX_NAMED).join(", ");
  return [
    say({
      code: "schedules-undeclared",
      text: `No live worker declares ${count(names.length, "schedule")}: ${named}${andMore(names.length - MAX_NAMED)}.`,
      next: "outlive schedules prune --dry-run",
    }),
  ];
}

/** They may disagree about when a schedule is due. */
function ofZoneData({ differingZoneData: versions }: SchedulesReview): Advice[] {
  if (versions.length === 0) return [];
  const named = versions.map(({ version, workers }) => `${version} on ${workers[0]}${andMore(workers.length - 1)}`);
  return [
    say({
      code: "time-zones-differ",
      text: `Workers have different time-zone data, and may disagree about when schedules are due: ${named.join("; ")}.`,
      next: "Run the same version of Node on all of them: it contains the data.",
    }),
  ];
}

function andMore(more: number): string {
  return more > 0 ? ` and ${count(more, "more", "more")}` : "";
}

function namesOf(kinds: readonly KindStatus[]): string[] {
  return kinds.map(({ kind }) => kind);
}

const MAX_NAMED = 4;

/** "mail 12, render 3 and 2 more kinds". */
function listed(kinds: readonly KindStatus[], number: (kind: KindStatus) => number): string {
  const named = kinds.toSorted((a, b) => number(b) - number(a)).slice(0, MAX_NAMED);
  const text = named.map((kind) => `${kind.kind} ${thousands(number(kind))}`).join(", ");
  return kinds.length > MAX_NAMED ? `${text} and ${count(kinds.length - MAX_NAMED, "more kind")}` : text;
}

// The survey: what `status` shows.

/** What one survey finds. */
export interface Survey {
  readonly at: number;
  readonly store: {
    readonly ok: boolean;
    readonly summary: readonly [what: string, ...facts: string[]];
    readonly detail: Readonly<Record<string, string | number | boolean>>;
    /** The process that has held the write lock all the while; null: none. */
    readonly blockedBy: { readonly pid: number; readonly command: string } | null;
  };
  readonly kinds: readonly KindCounts[];
  readonly workers: readonly KnownWorker[];
  readonly incidents: readonly IncidentSummary[];
  /** Of each kind with queued jobs that failed at their last attempt. */
  readonly failing: ReadonlyMap<string, Failing>;
  /** When the latest of the quarantined jobs was put there; null: there is none. */
  readonly lastQuarantinedAt: number | null;
  /** How many of them are there because what is stored of them is damaged. */
  readonly corruptCount: number;
  readonly schedules: SchedulesReview;
}

/** Queued jobs of one kind whose last attempt failed or took too long, among the newest that were read. */
export interface Failing {
  readonly jobs: number;
  readonly latest: string;
  readonly lastError: string;
}

export interface KindStatus extends KindCounts {
  /** Null: no queued job that was read failed before. */
  readonly failing: Failing | null;
  /** Live workers that know the kind. */
  readonly liveWorkers: number;
  /** Jobs that succeeded per second since the survey before; null: this is the first. */
  readonly perSecond: number | null;
}

/** `outlive status --json`. */
export interface Status {
  /** False: something needs a person. */
  readonly ok: boolean;
  readonly at: number;
  readonly store: Survey["store"];
  readonly kinds: readonly KindStatus[];
  readonly workers: readonly KnownWorker[];
  readonly incidents: readonly IncidentSummary[];
  readonly advice: readonly Advice[];
}

const MAX_INCIDENTS = 5;
const NOTHING_TO_REVIEW: SchedulesReview = { undeclared: [], differingZoneData: [] };
/** At most this many of the newest queued jobs are checked for whether they failed before, so that the screen comes at once. */
const MAX_QUEUED = 1_000;
/** At most this many of the newest quarantined jobs are checked. More than that need a person anyway. */
const MAX_QUARANTINED = 1_000;

export async function survey(engine: Engine, now: () => number): Promise<Survey> {
  const [health, deaths, incidents] = await Promise.all([
    engine.health(),
    engine.operator.deaths(),
    engine.incidents({ limit: MAX_INCIDENTS }),
  ]);
  const at = now();
  return {
    at,
    store: { ok: health.ok, summary: health.summary, detail: health.store, blockedBy: await engine.operator.blocker() },
    kinds: health.kinds,
    workers: withLeftovers(health.workers, deaths).map((worker) => knownWorker(worker, deaths, at)),
    incidents,
    failing: await failures(engine, health.kinds),
    ...(await quarantine(engine, health.kinds)),
    // A damaged table of schedules must not hide the rest.
    schedules: await engine.schedules.review().catch(() => NOTHING_TO_REVIEW),
  };
}

/** Pure: two surveys make a rate. */
export function statusOf(found: Survey, before: Survey | null, maxAgeMs: number): Status {
  const { at, store, workers, incidents } = found;
  const kinds = found.kinds.map((kind) => ({
    ...kind,
    failing: found.failing.get(kind.kind) ?? null,
    liveWorkers: workers.filter((worker) => works(worker) && worker.kinds.includes(kind.kind)).length,
    perSecond: rate(kind, at, before),
  }));
  const advice = advise({ ...found, kinds }, maxAgeMs);
  return { ok: !advice.some(({ needsPerson }) => needsPerson), at, store, kinds, workers, incidents, advice };
}

/** Null also if the retention took more than was added: then the difference says nothing. */
function rate(kind: KindCounts, at: number, before: Survey | null): number | null {
  const was = before?.kinds.find(({ kind: name }) => name === kind.kind);
  if (!before || !was || at <= before.at || kind.succeeded < was.succeeded) return null;
  return ((kind.succeeded - was.succeeded) * 1_000) / (at - before.at);
}

/** Also workers that have ended and still hold jobs. */
function withLeftovers(workers: readonly Deaths[number]["worker"][], deaths: Deaths): Deaths[number]["worker"][] {
  const there = new Set(workers.map(({ id }) => id));
  return [...workers, ...deaths.map(({ worker }) => worker).filter(({ id }) => !there.has(id))];
}

async function failures(engine: Engine, kinds: readonly KindCounts[]): Promise<ReadonlyMap<string, Failing>> {
  if (kinds.every(({ ready, delayed, held }) => ready + delayed + held === 0)) return new Map();
  const { jobs } = await engine.list({ state: "queued", limit: MAX_QUEUED });
  const failed = jobs.filter(({ lastOutcome }) => lastOutcome === "failed" || lastOutcome === "timed-out");
  const byKind = Map.groupBy(failed, ({ kind }) => kind);
  return new Map(
    [...byKind].map(([kind, all]) => {
      const latest = all.reduce((one, other) => ((other.startedAt ?? 0) > (one.startedAt ?? 0) ? other : one));
      const lastError = latest.error ? `${latest.error.name}: ${latest.error.message}` : "it took too long";
      return [kind, { jobs: all.length, latest: latest.id, lastError }];
    }),
  );
}

async function quarantine(
  engine: Engine,
  kinds: readonly KindCounts[],
): Promise<Pick<Survey, "lastQuarantinedAt" | "corruptCount">> {
  if (kinds.every(({ quarantined }) => quarantined === 0)) return { lastQuarantinedAt: null, corruptCount: 0 };
  const { jobs } = await engine.list({ state: "quarantined", limit: MAX_QUARANTINED });
  return {
    lastQuarantinedAt: jobs.reduce<number | null>((last, { finishedAt }) => Math.max(last ?? 0, finishedAt ?? 0), null),
    corruptCount: jobs.filter(({ lastOutcome }) => lastOutcome === "corrupt").length,
  };
}
