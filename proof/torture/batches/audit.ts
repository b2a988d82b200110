// What the rig for batches must find in the end: the histories of its processes and the user's tables, held against the store. Each broken promise
// is one sentence under the name of its law.
import type { Line } from "./history.ts";
import { type End, endOf, fileOf, type Input, type Planned, roundsOf, textOf } from "./plan.ts";
import type { Done, Paid } from "./tables.ts";

/** A batch as the store shows it in the end. */
export interface Found {
  readonly id: string;
  readonly key: string | null;
  readonly state: string;
  readonly rows: Readonly<Record<End | "aborted" | "total" | "left", number>>;
  /** Failed and quarantined rows, by line. */
  readonly failed: readonly { readonly line: number; readonly state: "failed" | "quarantined" }[];
  /** The bytes of its output file; null: there is none. */
  readonly output: string | null;
  /** How many jobs follow its end. */
  readonly doneJobs: number;
}

export interface Facts {
  /** What was asked for, by key. */
  readonly plans: ReadonlyMap<string, Planned>;
  readonly lines: readonly Line[];
  readonly found: readonly Found[];
  readonly paid: readonly Paid[];
  readonly done: readonly Done[];
  /** False: the store has no transactions of the user's, and both may be there more than once. Omitted: true. */
  readonly exactlyOnce?: boolean;
  /** What the store's own check found, and what else went wrong. */
  readonly inconsistencies: readonly string[];
}

export interface Findings {
  readonly endedNever: readonly string[];
  readonly endedTwice: readonly string[];
  readonly rowsLost: readonly string[];
  readonly rowsTwice: readonly string[];
  readonly outputsDiffer: readonly string[];
  readonly doneTwice: readonly string[];
  readonly innocentRowsQuarantined: readonly string[];
  readonly others: readonly string[];
}

type Broken = { -readonly [Law in keyof Findings]: string[] };

export function audit(facts: Facts): { readonly findings: Findings; readonly poisonFound: number } {
  const broken: Broken = {
    endedNever: [],
    endedTwice: [],
    rowsLost: [],
    rowsTwice: [],
    outputsDiffer: [],
    doneTwice: [],
    innocentRowsQuarantined: [],
    others: [...facts.inconsistencies],
  };
  const byKey = Map.groupBy(facts.found, ({ key }) => key ?? "");
  const { exactlyOnce = true } = facts;
  const once = <T>(values: readonly T[]): readonly T[] => (exactlyOnce ? values : [...new Set(values)]);
  const paid = counted(once(facts.paid.map(([batch, n]) => `${batch}:${n}`)));
  const done = counted(once(facts.done.map(([id, round]) => `${id} ${round}`)));
  let poisonFound = 0;
  for (const plan of facts.plans.values()) {
    const [batch, ...more] = byKey.get(plan.key) ?? [];
    byKey.delete(plan.key);
    for (const { id, rows } of more)
      for (let n = 0; n < Math.max(1, rows.total); n++)
        broken.rowsTwice.push(`batch ${id} has the key ${plan.key}, too`);
    if (!batch) {
      broken.endedNever.push(`batch ${plan.key} is not there`);
      for (const { n } of plan.rows) broken.rowsLost.push(`row ${n} of ${plan.key} is not there`);
      continue;
    }
    if (plan.act === "abort") judgeAborted(plan, batch, paid, exactlyOnce, broken);
    else {
      poisonFound += judgeRows(plan, batch, broken);
      judgePaid(plan, paid, broken);
      judgeFile(plan, batch, fileOf(plan), broken);
    }
    judgeEnd(plan, batch, done, broken);
  }
  for (const [key] of byKey) broken.others.push(`nobody asked for a batch with the key ${key}`);
  for (const key of paid.keys()) broken.others.push(`nobody may commit row ${key}`);
  broken.endedTwice.push(...endedTwice(facts.lines));
  broken.others.push(...unacknowledged(facts), ...runAgain(facts));
  return { findings: broken, poisonFound };
}

/**
 * A row of a batch that is aborted may have ended before it. What has is counted, committed and written once, and nothing else is. Where nothing can be committed, a
 * row whose worker was killed before it was counted may have run, and then be aborted.
 */
function judgeAborted(
  plan: Planned,
  batch: Found,
  paid: Map<string, number>,
  exactlyOnce: boolean,
  broken: Broken,
): void {
  const { key, kind, rows } = plan;
  const { id, rows: sums, failed, output } = batch;
  const name = `${key} (${id})`;
  judgeSums(name, rows.length, sums, broken);
  const lines = new Set(failed.map(({ line }) => line));
  if (lines.size !== failed.length || failed.length !== sums.failed + sums.quarantined)
    broken.others.push(`${name}: ${sums.failed} rows failed, and ${failed.length} are kept`);
  for (const { line, state } of failed)
    if (state !== "failed" || endOf(rows[line - 1]!.role) !== "failed")
      broken.others.push(`line ${line} of ${name} ${state} and is ${rows[line - 1]!.role}`);
  const commits = kind === "commits" || kind === "blocks";
  const committed = commits ? rows.filter(({ n }) => paid.has(`${key}:${n}`)) : rows;
  for (const { n } of commits ? committed : []) {
    for (let time = 1; time < paid.get(`${key}:${n}`)!; time++)
      broken.rowsTwice.push(`row ${n} of ${key} was committed once too often`);
    paid.delete(`${key}:${n}`);
  }
  for (let n = committed.length; n < sums.succeeded; n++) broken.rowsLost.push(`a row of ${name} was not committed`);
  if (commits && exactlyOnce) {
    for (let n = sums.succeeded; n < committed.length; n++) broken.rowsLost.push(`a row of ${name} was not counted`);
    const text = committed.map(textOf).join("");
    return judgeFile(plan, batch, text === "" ? null : text, broken);
  }
  const left = committed.reduce(
    (rest, row) => (textOf(row) !== "" && rest.startsWith(textOf(row)) ? rest.slice(textOf(row).length) : rest),
    output ?? "",
  );
  if (left !== "")
    broken.outputsDiffer.push(`batch ${name}: ${left.length} bytes are not of its rows, or out of order`);
}

/** Sums and failures against what was asked for. Returns how many poison rows are in quarantine. */
function judgeRows({ key, rows }: Planned, { id, rows: sums, failed }: Found, broken: Broken): number {
  const name = `${key} (${id})`;
  const ended = judgeSums(name, rows.length, sums, broken);
  if (ended === sums.total && sums.total === rows.length) {
    const expected = counted(rows.map(({ role }) => endOf(role)));
    for (const end of ["succeeded", "failed"] as const)
      if (sums[end] !== (expected.get(end) ?? 0))
        broken.others.push(`${name}: ${sums[end]} rows ${end}, not ${expected.get(end) ?? 0}`);
  }
  let poisonFound = 0;
  const kept = new Set<number>();
  for (const { line, state } of failed) {
    const row = rows[line - 1];
    if (kept.has(line)) broken.rowsTwice.push(`line ${line} of ${name} has failed twice`);
    kept.add(line);
    if (state === "quarantined" && row?.role === "poison") poisonFound++;
    else if (state === "quarantined") broken.innocentRowsQuarantined.push(`line ${line} of ${name} is ${row?.role}`);
    else if (!row || endOf(row.role) !== "failed")
      broken.others.push(`line ${line} of ${name} failed and is ${row?.role}`);
  }
  for (const [at, { role }] of rows.entries())
    if (endOf(role) !== "succeeded" && !kept.has(at + 1))
      broken.others.push(`line ${at + 1} of ${name} is ${role} and is not among the failed`);
  return poisonFound;
}

/** Returns how many rows have ended. */
function judgeSums(name: string, asked: number, sums: Found["rows"], broken: Broken): number {
  for (let n = sums.total; n < asked; n++) broken.rowsLost.push(`a row of ${name} was not added`);
  for (let n = asked; n < sums.total; n++) broken.rowsTwice.push(`a row of ${name} was added twice`);
  const ended = sums.succeeded + sums.failed + sums.quarantined + sums.aborted;
  for (let n = ended; n < sums.total; n++) broken.rowsLost.push(`a row of ${name} was not counted`);
  for (let n = sums.total; n < ended; n++) broken.rowsTwice.push(`a row of ${name} was counted twice`);
  return ended;
}

/** Rows that end in the user's transaction are in the table once if they succeed, and otherwise not at all. */
function judgePaid({ key, kind, rows }: Planned, paid: Map<string, number>, broken: Broken): void {
  if (kind !== "commits" && kind !== "blocks") return;
  for (const { n, role } of rows) {
    const times = paid.get(`${key}:${n}`) ?? 0;
    paid.delete(`${key}:${n}`);
    const wanted = endOf(role) === "succeeded" ? 1 : 0;
    if (times < wanted) broken.rowsLost.push(`row ${n} of ${key} was not committed`);
    for (let time = wanted; time < times; time++)
      broken.rowsTwice.push(`row ${n} of ${key} was committed once too often`);
  }
}

function judgeEnd(
  plan: Planned,
  { id, state, doneJobs }: Found,
  done: ReadonlyMap<string, number>,
  broken: Broken,
): void {
  const name = `batch ${plan.key} (${id})`;
  const isEnded = state === "completed" || (plan.act === "abort" && state === "aborted");
  const rounds = roundsOf(plan);
  for (const round of rounds) {
    const times = done.get(`${id} ${round}`) ?? 0;
    if (isEnded && times === 0) broken.endedNever.push(`what follows round ${round} of ${name} has not run`);
    if (times > 1) broken.doneTwice.push(`what follows round ${round} of ${name} was committed ${times} times`);
  }
  if (!isEnded) broken.endedNever.push(`${name} is ${state}`);
  if (doneJobs > rounds.length) broken.doneTwice.push(`${doneJobs} jobs follow the end of ${name}`);
}

function judgeFile({ key }: Planned, { id, output }: Found, expected: string | null, broken: Broken): void {
  if (output !== expected)
    broken.outputsDiffer.push(
      `batch ${key} (${id}): ${output?.length ?? "no"} bytes, not ${expected?.length ?? "none"}`,
    );
}

/** Only the process that ended a batch says so, so no other may say it again. */
function endedTwice(lines: readonly Line[]): string[] {
  const said = counted(lines.flatMap((line) => (line.what === "ended" ? [`${line.id} in round ${line.round}`] : [])));
  return [...said].filter(([, times]) => times > 1).map(([what, times]) => `batch ${what} was ended ${times} times`);
}

function unacknowledged({ plans, lines }: Facts): string[] {
  const acked = new Map(lines.flatMap((line) => (line.what === "ack" ? [[line.key, line]] : [])));
  return [...plans.values()].flatMap(({ key, rows }) => {
    const ack = acked.get(key);
    if (!ack) return [`batch ${key} was never acknowledged`];
    return ack.rows === rows.length ? [] : [`batch ${key} was acknowledged with ${ack.rows} rows, not ${rows.length}`];
  });
}

/** With `mark: "row"` a row that succeeded does not run again once the next row of its attempt has begun. */
function runAgain({ plans, lines }: Facts): string[] {
  const broken: string[] = [];
  const attempts = new Map<string, number[]>();
  for (const line of lines) {
    if (line.what !== "run" || plans.get(line.key)?.kind !== "careful") continue;
    const attempt = `${line.key} ${line.attempt}`;
    const rows = attempts.get(attempt);
    if (rows) rows.push(line.n);
    else attempts.set(attempt, [line.n]);
  }
  const settled = new Map<string, number>();
  const isFinal = ({ role }: Input): boolean => role !== "flaky" && role !== "stubborn";
  for (const [attempt, ran] of attempts) {
    const [key, block] = attempt.split(" ") as [string, string];
    // What failed runs again in the next round.
    const round = block.split(":").at(-2)!;
    for (const n of ran.slice(0, -1)) {
      const row = `${key}:${n} in round ${round}`;
      if (isFinal(plans.get(key)!.rows[n]!)) settled.set(row, (settled.get(row) ?? 0) + 1);
    }
  }
  for (const [row, times] of settled) if (times > 1) broken.push(`row ${row} ran again after it was marked`);
  return broken;
}

function counted<T>(values: readonly T[]): Map<T, number> {
  const counts = new Map<T, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return counts;
}
