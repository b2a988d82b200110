// What the histories of the rig for waiting and keys must show. Each broken promise is one sentence, under the name of its law. Three witnesses:
// the handlers' own lines, the rig's memory of what was acknowledged and whom it killed, and the observer in the tables.
import { BOUNDED, CALM_MS, type Line, NAP_MS, RATE, THROTTLE_EVERY_MS } from "./kinds.ts";
import type { Sighting } from "./observer.ts";

/** An event whose enqueue resolved. Instants are those of the handlers' lines. */
export interface SentEvent {
  readonly n: number;
  readonly sentAt: number;
}

export interface Facts {
  readonly lines: readonly Line[];
  /** When each process was killed, before the signal was sent: what it did later may have happened or not. */
  readonly killedAt: ReadonlyMap<number, number>;
  readonly sightings: readonly Sighting[];
  /** By kind and key. */
  readonly events: ReadonlyMap<string, readonly SentEvent[]>;
  /** Signals that were kept, by job. */
  readonly signals: ReadonlyMap<string, readonly number[]>;
  /** Jobs that have not ended, with what they wait for. */
  readonly unfinished: readonly { readonly id: string; readonly kind: string; readonly why: string }[];
  /** Jobs that have ended otherwise than they should. */
  readonly ended: readonly { readonly id: string; readonly kind: string; readonly state: string }[];
  /** How many jobs of each kind were acknowledged, or follow from those, and how many there are. */
  readonly counts: readonly { readonly kind: string; readonly expected: number; readonly found: number }[];
}

export const NO_FACTS: Facts = {
  lines: [],
  killedAt: new Map(),
  sightings: [],
  events: new Map(),
  signals: new Map(),
  unfinished: [],
  ended: [],
  counts: [],
};

export interface Findings {
  readonly overLimit: readonly string[];
  readonly stuckKeys: readonly string[];
  readonly orderBroken: readonly string[];
  readonly signalsLost: readonly string[];
  readonly parentsAsleep: readonly string[];
  readonly rerunsLost: readonly string[];
  /** Acknowledged, and not there. */
  readonly lost: readonly string[];
  /** There, and never asked for. */
  readonly doubled: readonly string[];
  /** A sleep or a debounced event that came before its time. */
  readonly early: readonly string[];
  /** An occurrence of a schedule with more than one job. */
  readonly occurrencesTwice: readonly string[];
  /** One without a job. */
  readonly occurrencesMissed: readonly string[];
}

export const NO_FINDINGS: Findings = {
  overLimit: [],
  stuckKeys: [],
  orderBroken: [],
  signalsLost: [],
  parentsAsleep: [],
  rerunsLost: [],
  lost: [],
  doubled: [],
  early: [],
  occurrencesTwice: [],
  occurrencesMissed: [],
};

export function together(all: readonly Findings[]): Findings {
  const laws = Object.keys(NO_FINDINGS) as (keyof Findings)[];
  return Object.fromEntries(laws.map((law) => [law, all.flatMap((one) => one[law])])) as unknown as Findings;
}

const KEYED: ReadonlySet<string> = new Set(["limited", "paced", "ordered"]);
const EVENTS: ReadonlySet<string> = new Set(["event", "calm", "slow"]);
const SLEEPERS: ReadonlySet<string> = new Set(["parent", "ward", "napper"]);

export function audit(facts: Facts): Findings {
  const { unfinished, ended, counts, lines, sightings } = facts;
  const left = (kinds: ReadonlySet<string>): string[] => unfinished.filter(({ kind }) => kinds.has(kind)).map(sentence);
  return {
    overLimit: [
      ...overlaps(facts),
      ...overlapsSeen(sightings),
      ...tooFast(lines),
      ...tooFastSeen(sightings, "paced", 1_000 / RATE.rate, RATE.burst),
      ...tooFastSeen(sightings, "slow", THROTTLE_EVERY_MS, 1),
    ],
    stuckKeys: [...left(KEYED), ...ended.map(({ id, kind, state }) => `${kind} ${id} is ${state}`)],
    orderBroken: [...disorder(lines), ...disorderSeen(sightings)],
    signalsLost: [...signalsLost(facts), ...left(new Set(["listener"]))],
    parentsAsleep: left(SLEEPERS),
    rerunsLost: [...rerunsLost(facts), ...left(EVENTS)],
    lost: counts
      .filter(({ expected, found }) => found < expected)
      .map(({ kind, expected, found }) => `${kind}: ${found} of ${expected} jobs are there`),
    doubled: counts
      .filter(({ expected, found }) => found > expected)
      .map(({ kind, expected, found }) => `${kind}: ${found} jobs are there, and ${expected} were asked for`),
    early: [...shortNaps(lines), ...uncalm(facts)],
    occurrencesTwice: [],
    occurrencesMissed: [],
  };
}

function sentence({ id, kind, why }: Facts["unfinished"][number]): string {
  return `${kind} ${id} never ended: ${why}`;
}

/** Two attempts of one key at once: the second started before the first had ended or its process was killed. */
function overlaps({ lines, killedAt }: Facts): string[] {
  const broken: string[] = [];
  for (const [key, own] of byKey(lines, "limited")) {
    let last: { readonly line: Line; readonly until: number } | null = null;
    for (const line of own.filter(({ what }) => what === "start")) {
      if (last && line.at < last.until)
        broken.push(
          `key ${key}: ${line.job} attempt ${line.attempt} started ${(last.until - line.at).toFixed(1)} ms before ${last.line.job} attempt ${last.line.attempt} had ended`,
        );
      const end = own.find(
        ({ what, job, attempt, at }) => what === "end" && job === line.job && attempt === line.attempt && at >= line.at,
      );
      last = { line, until: end?.at ?? killedAt.get(line.process) ?? line.at };
    }
  }
  return broken;
}

/** The same in the tables: a job of a key was claimed while another one of it ran. */
function overlapsSeen(sightings: readonly Sighting[]): string[] {
  const broken: string[] = [];
  const running = new Map<string, string>();
  for (const { kind, key, job, fence, runs } of sightings) {
    if (kind !== "limited") continue;
    const other = running.get(key);
    if (runs && other !== undefined)
      broken.push(`key ${key}: ${job} was claimed under fence ${fence} while ${other} ran`);
    if (runs) running.set(key, job);
    else if (other === job) running.delete(key);
  }
  return broken;
}

/** More starts in a window than the rate allows. A handler reports its start after its claim, by an unknown time that differs between starts. */
const SLACK_STARTS = 2;

function tooFast(lines: readonly Line[]): string[] {
  return [...byKey(lines, "paced")].flatMap(([key, own]) =>
    crowded(
      `handlers of key ${key}`,
      own.map(({ at }) => at),
      1_000 / RATE.rate,
      RATE.burst + SLACK_STARTS,
    ),
  );
}

/** The same in the tables, to the ms of the store's clock: a crash may waste a start, and never adds one. */
function tooFastSeen(sightings: readonly Sighting[], kind: string, intervalMs: number, burst: number): string[] {
  const starts = new Map<string, number[]>();
  for (const seen of sightings)
    if (seen.kind === kind && seen.runs) starts.set(seen.key, [...(starts.get(seen.key) ?? []), seen.startedAt]);
  return [...starts].flatMap(([key, own]) =>
    crowded(
      `key ${key} of ${kind}`,
      own.toSorted((a, b) => a - b),
      intervalMs,
      burst,
    ),
  );
}

/** A start on time and one on the next whole ms are the same. */
const ROUNDING = 1e-6;

/** In each window at most `burst` starts, and one more for each interval. */
function crowded(what: string, starts: readonly number[], intervalMs: number, burst: number): string[] {
  const broken: string[] = [];
  for (let first = 0; first < starts.length; first++)
    for (let last = first; last < starts.length; last++) {
      const ms = starts[last]! - starts[first]!;
      const count = last - first + 1;
      if (count > burst + ms / intervalMs + ROUNDING) broken.push(`${what}: ${count} starts in ${ms.toFixed(0)} ms`);
    }
  return broken.slice(0, 10);
}

/** The next of a key started before the one before it had ended. */
function disorder(lines: readonly Line[]): string[] {
  const broken: string[] = [];
  for (const [key, own] of byKey(lines, "ordered")) {
    const endedAt = new Map<number, number>();
    for (const { what, n, at } of own) if (what === "end") endedAt.set(n, at);
    for (const { what, n, at } of own) {
      // Below 0: one of no place in the line.
      if (what !== "start" || n <= 0) continue;
      const before = endedAt.get(n - 1);
      if (before === undefined || before > at) broken.push(`key ${key}: ${n} started before ${n - 1} had ended`);
    }
  }
  return broken;
}

/** The same in the tables: once the next of a key was claimed, none before it is claimed again. */
function disorderSeen(sightings: readonly Sighting[]): string[] {
  const broken: string[] = [];
  const places = new Map<string, string[]>();
  for (const { kind, key, job, runs } of sightings) {
    if (kind !== "ordered" || !runs) continue;
    const began = places.get(key) ?? [];
    places.set(key, began);
    if (!began.includes(job)) began.push(job);
    else if (began.at(-1) !== job) broken.push(`key ${key}: ${job} was claimed again after ${began.at(-1)} had begun`);
  }
  return broken;
}

function signalsLost({ lines, signals }: Facts): string[] {
  const broken: string[] = [];
  const heard = new Map<string, number[]>();
  for (const { what, job, n } of lines) if (what === "heard") heard.set(job, [...(heard.get(job) ?? []), n]);
  for (const [job, sent] of signals) {
    // The line is in a step, which runs again if its process died before the step was kept.
    const got = [...new Set(heard.get(job) ?? [])];
    if (got.join() !== sent.join())
      broken.push(`listener ${job} was sent ${sent.join()} and heard ${got.join() || "nothing"}`);
  }
  return broken;
}

/** The last event of a key was seen by no attempt that began after it. */
function rerunsLost({ lines, events }: Facts): string[] {
  const broken: string[] = [];
  for (const [topic, sent] of events) {
    const { n, sentAt } = sent.at(-1)!;
    const seen = lines.some(
      (line) => line.what === "saw" && topicOf(line) === topic && line.n === n && line.at >= sentAt,
    );
    if (!seen) broken.push(`event ${n} of ${topic} was not seen by an attempt that began after it`);
  }
  return broken;
}

/** The store's clock counts whole ms. */
const CLOCK_MS = 2;

function shortNaps(lines: readonly Line[]): string[] {
  return lines
    .filter(({ what, n }) => what === "slept" && n < NAP_MS - CLOCK_MS)
    .map(({ job, n }) => `napper ${job} slept for ${n.toFixed(1)} ms`);
}

/** An attempt saw a debounced event that was not quiet for long enough. Those with a longest time may; that this is kept is the simulator's to see, because here a due job waits for a slot. */
function uncalm({ lines, events }: Facts): string[] {
  const broken: string[] = [];
  for (const [topic, sent] of events) {
    if (!topic.startsWith("calm ") || topic.startsWith(`calm ${BOUNDED.prefix}`)) continue;
    const sentAt = new Map(sent.map((one) => [one.n, one.sentAt]));
    for (const line of lines) {
      if (line.what !== "saw" || topicOf(line) !== topic) continue;
      const quiet = line.at - (sentAt.get(line.n) ?? Number.NEGATIVE_INFINITY);
      if (quiet < CALM_MS - CLOCK_MS)
        broken.push(`event ${line.n} of ${topic} was seen ${quiet.toFixed(1)} ms after it was sent`);
    }
  }
  return broken;
}

function topicOf({ kind, key }: Line): string {
  return `${kind} ${key}`;
}

function byKey(lines: readonly Line[], kind: string): Map<string, Line[]> {
  const all = new Map<string, Line[]>();
  for (const line of lines) {
    if (line.kind !== kind) continue;
    const own = all.get(line.key);
    if (own) own.push(line);
    else all.set(line.key, [line]);
  }
  for (const own of all.values()) own.sort((a, b) => a.at - b.at);
  return all;
}
