// What the histories of the rig for waiting and keys must show. Each broken promise is one sentence, under the name of its law.
import { type Line, RATE } from "./kinds.ts";

export interface Facts {
  readonly lines: readonly Line[];
  /** When each process was killed, before the signal was sent: what it did later may have happened or not. */
  readonly killedAt: ReadonlyMap<number, number>;
  /** By key: the number of the last event whose enqueue resolved, and the instant at which it was sent. */
  readonly lastEvents: ReadonlyMap<string, { readonly n: number; readonly sentAt: number }>;
  /** Signals that were kept, by job. */
  readonly signals: ReadonlyMap<string, readonly number[]>;
  /** Jobs that have not ended, with what they wait for. */
  readonly unfinished: readonly { readonly id: string; readonly kind: string; readonly why: string }[];
  /** Jobs that have ended otherwise than they should. */
  readonly ended: readonly { readonly id: string; readonly kind: string; readonly state: string }[];
}

export interface Findings {
  readonly overLimit: readonly string[];
  readonly stuckKeys: readonly string[];
  readonly orderBroken: readonly string[];
  readonly signalsLost: readonly string[];
  readonly parentsAsleep: readonly string[];
  readonly rerunsLost: readonly string[];
}

export function audit(facts: Facts): Findings {
  const { unfinished, ended } = facts;
  const stuck = unfinished.filter(({ kind }) => kind === "limited" || kind === "paced" || kind === "ordered");
  const failed = ended.map(({ id, kind, state }) => `${kind} ${id} is ${state}`);
  const asleep = unfinished.filter(({ kind }) => kind === "parent" || kind === "ward");
  return {
    overLimit: [...overlaps(facts), ...tooFast(facts.lines)],
    stuckKeys: [...stuck.map(sentence), ...failed],
    orderBroken: disorder(facts.lines),
    signalsLost: [...signalsLost(facts), ...unfinished.filter(({ kind }) => kind === "listener").map(sentence)],
    parentsAsleep: asleep.map(sentence),
    rerunsLost: [...rerunsLost(facts), ...unfinished.filter(({ kind }) => kind === "event").map(sentence)],
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
      last = { line, until: end?.at ?? killedAt.get(line.pid) ?? line.at };
    }
  }
  return broken;
}

/** More starts in a window than the rate allows. The store's clock counts whole milliseconds, and a start is reported after its claim. */
function tooFast(lines: readonly Line[]): string[] {
  const broken: string[] = [];
  const intervalMs = 1_000 / RATE.rate;
  // A claim comes before its start is reported, by an unknown time that differs between starts.
  const SLACK_STARTS = 2;
  for (const [key, own] of byKey(lines, "paced")) {
    const starts = own.map(({ at }) => at);
    for (let first = 0; first < starts.length; first++)
      for (let last = first; last < starts.length; last++) {
        const allowed = RATE.burst + (starts[last]! - starts[first]!) / intervalMs + SLACK_STARTS;
        if (last - first + 1 > allowed)
          broken.push(`key ${key}: ${last - first + 1} starts in ${(starts[last]! - starts[first]!).toFixed(0)} ms`);
      }
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
      if (what !== "start" || n === 0) continue;
      const before = endedAt.get(n - 1);
      if (before === undefined || before > at) broken.push(`key ${key}: ${n} started before ${n - 1} had ended`);
    }
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
    if (new Set(got).symmetricDifference(new Set(sent)).size > 0)
      broken.push(`listener ${job} was sent ${sent.join()} and heard ${got.join() || "nothing"}`);
  }
  return broken;
}

/** The last event of a key was seen by no attempt that began after it. */
function rerunsLost({ lines, lastEvents }: Facts): string[] {
  const broken: string[] = [];
  for (const [key, { n, sentAt }] of lastEvents) {
    const seen = lines.some((line) => line.what === "saw" && line.key === key && line.n === n && line.at >= sentAt);
    if (!seen) broken.push(`event ${n} of key ${key} was not seen by an attempt that began after it`);
  }
  return broken;
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
