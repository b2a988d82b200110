// The promises of batches: what is submitted is in the store once, each row ends once and counts once, by the attempt that owned its block; a
// batch ends once, when it is sealed and all of its rows have ended, and its `done` is added with that end; an aborted one starts nothing
// more; output files are what the rows wrote, by line, and one that a `done` got never changes or goes.
import { createHash } from "node:crypto";
import { decodeBlock } from "../../../src/job/batches.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { FILES, type Outputs, type Plan, type RowIn, type RowInput, type SimBlobs } from "../workloads/batches.ts";
import { noRows } from "./audit-rows.ts";
import { isTerminal, type Model, type Moment, STATE } from "./model.ts";
import { demand } from "./violation.ts";
import type { BatchRow, BlockRow, FailureRow, JobRow, Watch } from "./watch.ts";

/** The codes in the file, written down here again. */
const OPEN = 0;
const SEALED = 1;
const ABORTING = 2;
const STATES = ["open", "sealed", "aborting", "completed", "failed", "aborted"] as const;

function hasEnded(state: number): boolean {
  return state > ABORTING;
}

type Word = "began" | "succeeded" | "failed";

interface KnownBlock {
  row: BlockRow;
  readonly lines: readonly number[];
}

export class BatchesLaw {
  readonly #model: Model;
  readonly #db: Database;
  readonly #batches = new Map<number, BatchRow>();
  /** By the row of their job; a block without a job has a number below 0. */
  readonly #blocks = new Map<number, KnownBlock>();
  /** What handlers said about rows, by attempt and line. */
  readonly #words = new Map<string, Word>();
  /** The files that a `done` got, by their blobs, with their checksums. */
  readonly #given = new Map<string, string>();

  constructor(model: Model, db: Database) {
    this.#model = model;
    this.#db = db;
  }

  // ---- reported by handlers

  began(run: RowIn, line: number): void {
    const job = this.#model.jobsById.get(run.id);
    const block = job && this.#blocks.get(job.seq);
    this.#words.set(wordKey(run.id, run.fence.epoch, run.fence.number, line), "began");
    if (!job || !block || job.state !== STATE.running) return;
    // One that lost its block runs on until it hears of it; what it does counts for nothing.
    if (job.epoch !== run.fence.epoch || job.fence !== run.fence.number) return;
    demand(
      !isMarked(block, line),
      () => `line ${line} of ${run.id} runs again in attempt ${job.fence}, and its end was durable`,
    );
  }

  ended(run: RowIn, line: number, how: "succeeded" | "failed"): void {
    this.#words.set(wordKey(run.id, run.fence.epoch, run.fence.number, line), how);
  }

  given(outputs: Outputs): void {
    for (const { blob, sha256 } of Object.values(outputs)) this.#given.set(blob, sha256);
  }

  // ---- read from the rows

  /** Whether this job may be cancelled because its batch is aborted. */
  isAborted({ seq }: JobRow): boolean {
    const batch = this.#batches.get(this.#blocks.get(seq)?.row.batch ?? -1);
    return batch !== undefined && batch.state >= ABORTING;
  }

  /** Whether every batch that is in the store has ended. An open one is its submitter's to go on with. */
  get drained(): boolean {
    for (const { state } of this.#batches.values()) if (!hasEnded(state)) return false;
    return true;
  }

  /** After the model has learnt the moment. */
  onMoment(moment: Moment): void {
    const touched = new Set<number>();
    const failures = moment.seen.flatMap((one) => (one.subject === "failure" && one.is ? [one.is] : []));
    const done = moment.seen.flatMap((one) =>
      one.subject === "job" && one.was === null && one.is?.kind.endsWith(":done") ? [one.is.id] : [],
    );
    const ends: string[] = [];
    for (const one of moment.seen) {
      if (one.subject === "batch") {
        const { was, is } = one;
        demand(is !== null, () => `batch ${was!.id} was deleted`);
        if (was && was.state !== is.state) this.#changed(was, is, moment);
        if (was && hasEnded(is.state) && was.state !== is.state) ends.push(`${is.id}:done:${is.round}`);
        this.#batches.set(is.seq, is);
        touched.add(is.seq);
      }
      if (one.subject === "block") {
        demand(one.is !== null, () => `a block of batch ${one.was!.batch} was deleted`);
        this.#marked(one.is, failures, moment);
        touched.add(one.is.batch);
      }
      if (one.subject === "job" && one.is && this.#blocks.has(one.is.seq)) {
        const { was, is } = one;
        const { row } = this.#blocks.get(is.seq)!;
        if (was && !isTerminal(was.state) && is.state === STATE.succeeded) this.#allSucceeded(is);
        if (was?.state === STATE.queued && is.state === STATE.running) this.#mayStart(is);
        if (was && convicts(was, is)) this.#convicted(is, failures);
        touched.add(row.batch);
      }
    }
    for (const id of ends)
      demand(
        done.filter((one) => one === id).length === 1,
        () => `a batch has ended, and ${id} was not enqueued with that`,
      );
    for (const id of done) demand(ends.includes(id), () => `${id} was enqueued, and no end of a batch asked for it`);
    for (const seq of touched) this.#addsUp(seq);
  }

  #changed(was: BatchRow, is: BatchRow, { answers }: Moment): void {
    const says = (): string => `batch ${is.id} went from ${STATES[was.state]} to ${STATES[is.state]}`;
    const ended = is.succeeded + is.failed + is.quarantined + is.aborted;
    if (hasEnded(is.state)) {
      demand(was.state === SEALED || was.state === ABORTING, says);
      demand(is.round === was.round && ended === is.rows, () => `${says()} with ${ended} of ${is.rows} rows ended`);
    } else if (is.state === OPEN) demand(hasEnded(was.state) && is.round === was.round + 1, says);
    else demand(was.state === OPEN || (was.state === SEALED && is.state === ABORTING), says);
    if (is.state !== SEALED) return;
    const asked = answers.some(({ of, ...one }) => of === "seal" && "batch" in one && one.batch === is.id);
    demand(asked, () => `${says()}, and it was never requested`);
  }

  /** A mark stays; and only what the owner of the block said about a row is ever marked. */
  #marked(is: BlockRow, failures: readonly FailureRow[], moment: Moment): void {
    const known = this.#blocks.get(is.job) ?? { row: { ...is, marks: null }, lines: this.#linesOf(is) };
    const before = marksOf(known.row);
    const now = marksOf(is);
    for (let row = 0; row < is.rows; row++) {
      if (before[row] === now[row]) continue;
      const line = known.lines[row]!;
      demand(now[row] === "1", () => `the mark of line ${line} of ${this.#name(is)} was taken away`);
      const failure = failures.find((one) => one.batch === is.batch && one.round === is.round && one.line === line);
      const wanted: Word = failure === undefined ? "succeeded" : failure.quarantined === 1 ? "began" : "failed";
      const words = this.#attemptsOf(is.job, moment).map((attempt) => this.#words.get(`${attempt} ${line}`));
      demand(
        words.includes(wanted),
        () => `line ${line} of ${this.#name(is)} was marked, and the owner of the block says ${words.join(", ")}`,
      );
    }
    this.#blocks.set(is.job, { row: is, lines: known.lines });
  }

  /** The attempts that had the job in this moment: a turn may end one and begin the next. */
  #attemptsOf(seq: number, { seen }: Moment): readonly string[] {
    const rows = seen.flatMap((one) => (one.subject === "job" && one.is?.seq === seq ? [one.was, one.is] : []));
    const all = [...rows, this.#model.jobs.get(seq) ?? null].flatMap((row) =>
      row === null ? [] : [attemptKey(row.id, row.epoch, row.fence)],
    );
    return [...new Set(all)];
  }

  /** The block has succeeded: each row without a mark has, in this attempt. */
  #allSucceeded({ seq, id, epoch, fence }: JobRow): void {
    const block = this.#blocks.get(seq)!;
    for (const line of block.lines)
      demand(
        isMarked(block, line) || this.#words.get(wordKey(id, epoch, fence, line)) !== undefined,
        () => `${id} has succeeded, and line ${line} did not run in attempt ${fence}`,
      );
  }

  #mayStart({ seq, id, fence }: JobRow): void {
    const { row } = this.#blocks.get(seq)!;
    const batch = this.#batches.get(row.batch)!;
    // A block of which every row has ended has not, if its worker died before it could say so; it runs again, with nothing to do.
    const isDone = !marksOf(row).includes("0");
    demand(
      isDone || batch.state < ABORTING || batch.tending > 0,
      () => `attempt ${fence} of ${id} began, and batch ${batch.id} is ${STATES[batch.state]}`,
    );
  }

  #convicted({ seq, id }: JobRow, failures: readonly FailureRow[]): void {
    const { row } = this.#blocks.get(seq)!;
    const guilty = failures.filter((one) => one.batch === row.batch && one.number === row.number && one.quarantined);
    demand(
      guilty.length === 1,
      () => `the counters of ${id} start again, and ${guilty.length} of its rows were blamed`,
    );
  }

  /** The sums of a batch are those of its rows: marked ones, those of ended blocks, and rejected ones. */
  #addsUp(seq: number): void {
    const batch = this.#batches.get(seq);
    if (batch === undefined) return;
    let rows = 0;
    let ended = 0;
    for (const { row } of this.#blocks.values()) {
      if (row.batch !== seq || row.round !== batch.round) continue;
      const job = this.#model.jobs.get(row.job);
      const marked = marksOf(row).replaceAll("0", "").length;
      rows += row.rows;
      ended += job && isTerminal(job.state) ? row.rows : marked;
    }
    const rejected = batch.rows - rows;
    const sum = batch.succeeded + batch.failed + batch.quarantined + batch.aborted;
    demand(
      rejected >= 0 && sum === ended + rejected,
      () => `batch ${batch.id} says that ${sum} of its ${batch.rows} rows have ended, and ${ended + rejected} have`,
    );
  }

  #linesOf({ job }: BlockRow): readonly number[] {
    const found = job < 0 ? undefined : this.#db.sql("SELECT input FROM outlive_jobs WHERE seq = ?").get(job);
    return found === undefined ? [] : decodeBlock(found["input"] as string).rows.map(({ line }) => line);
  }

  #name({ batch, round, number }: BlockRow): string {
    return `${this.#batches.get(batch)?.id}:${round}:${number}`;
  }

  /** The rows are older ones. */
  wentBack(watch: Watch): void {
    this.#batches.clear();
    this.#blocks.clear();
    // Rows run again, and may end in another way.
    this.#given.clear();
    for (const is of watch.all("batch")) this.#batches.set(is.seq, is);
    for (const is of watch.all("block")) this.#blocks.set(is.job, { row: is, lines: this.#linesOf(is) });
  }

  // ---- at the end

  /** `undisturbed`: nothing was done to any process but by rows that kill. */
  audit(plans: readonly Plan[], blobs: SimBlobs, undisturbed: boolean): void {
    noRows(
      this.#db,
      "SELECT batch, round, line FROM committed_rows GROUP BY batch, line HAVING count(*) > 1",
      "rows that were committed twice",
    );
    for (const [blob, sha256] of this.#given) {
      const content = blobs.contents.get(blob);
      const found = content === undefined ? "gone" : createHash("sha256").update(content).digest("hex");
      demand(found === sha256, () => `a done got the file ${blob} with the checksum ${sha256}, and it is ${found}`);
    }
    for (const plan of plans) {
      const batch = [...this.#batches.values()].find(({ key }) => key === plan.key);
      demand(batch !== undefined, () => `the batch ${plan.key} was acknowledged and is not there`);
      demand(hasEnded(batch.state), () => `batch ${batch.id} is ${STATES[batch.state]}`);
      this.#dones(batch);
      this.#rowsOf(plan, batch, blobs, undisturbed);
    }
  }

  #dones({ id, round }: BatchRow): void {
    for (let one = 1; one <= round; one++) {
      const done = this.#model.jobsById.get(`${id}:done:${one}`);
      demand(done?.state === STATE.succeeded, () => `round ${one} of batch ${id} has ended, and its done has not run`);
    }
  }

  /** Every line was submitted once, and its latest round says what it came to. */
  #rowsOf(plan: Plan, batch: BatchRow, blobs: SimBlobs, undisturbed: boolean): void {
    const ends = new Map<number, string>();
    const said = { succeeded: 0, failed: 0, quarantined: 0, aborted: 0 };
    for (let round = 1; round <= batch.round; round++) {
      const found = this.#endsOf(batch, round);
      const expected = round === 1 ? null : new Set([...ends].flatMap(([line, as]) => (isBad(as) ? [line] : [])));
      demand(
        expected === null || (found.size === expected.size && [...expected].every((line) => found.has(line))),
        () =>
          `round ${round} of batch ${batch.id} has the lines ${[...found.keys()].join(", ")}, and ${[...(expected ?? [])].join(", ")} had failed`,
      );
      for (const [line, as] of found) ends.set(line, as);
      if (round === batch.round) for (const as of found.values()) said[as as keyof typeof said]++;
    }
    const lines = [...ends.keys()].toSorted((a, b) => a - b);
    // An aborted one may have been aborted before all rows came.
    const isWhole = lines.length === plan.rows.length || plan.abortAfterMs !== null;
    demand(
      isWhole && lines.every((line, at) => line === at + 1),
      () => `of ${plan.rows.length} rows of batch ${batch.id} there are the lines ${lines.join(", ")}`,
    );
    const { succeeded, failed, quarantined, aborted } = batch;
    demand(
      JSON.stringify(said) === JSON.stringify({ succeeded, failed, quarantined, aborted }),
      () =>
        `batch ${batch.id} says ${JSON.stringify({ succeeded, failed, quarantined, aborted })}, and its rows ${JSON.stringify(said)}`,
    );
    for (const [line, as] of ends) {
      const { way } = plan.rows[line - 1]!;
      demand(way !== "misfit" || as === "failed", () => `line ${line} of ${batch.id} does not fit, and is ${as}`);
      demand(way !== "kills" || as !== "succeeded", () => `line ${line} of ${batch.id} kills, and has succeeded`);
      demand(
        !undisturbed || as !== "quarantined" || way === "kills",
        () => `line ${line} of ${batch.id} is in quarantine, and another one kills`,
      );
    }
    this.#outputs(plan, batch, ends, blobs);
  }

  /** How each line of a round ended. */
  #endsOf(batch: BatchRow, round: number): Map<number, string> {
    const ends = new Map<number, string>();
    const set = (line: number, as: string): void => {
      demand(!ends.has(line), () => `line ${line} of batch ${batch.id} is there twice in round ${round}`);
      ends.set(line, as);
    };
    const failures = this.#db
      .sql("SELECT row, line, quarantined FROM outlive_row_failures WHERE batch = ? AND round = ?")
      .all(batch.seq, round) as unknown as { row: number | null; line: number; quarantined: number }[];
    for (const { line, quarantined } of failures) set(line, quarantined === 1 ? "quarantined" : "failed");
    for (const { row, lines } of this.#blocks.values()) {
      if (row.batch !== batch.seq || row.round !== round) continue;
      const marks = marksOf(row);
      const state = this.#model.jobs.get(row.job)?.state ?? STATE.queued;
      lines.forEach((line, at) => {
        const isFailed = failures.some((one) => one.row !== null && one.line === line);
        if (!isFailed) set(line, marks[at] === "1" ? "succeeded" : UNMARKED[state]!);
      });
    }
    return ends;
  }

  /** The files of the latest round: what each row that succeeded wrote, by line. */
  #outputs({ rows }: Plan, { id, round }: BatchRow, ends: ReadonlyMap<number, string>, blobs: SimBlobs): void {
    for (const [file, textOf] of Object.entries(FILES)) {
      const texts = rows.map((row: RowInput, at) => (ends.get(at + 1) === "succeeded" ? textOf(at + 1, row) : null));
      const expected = texts.filter((text) => text !== null).join("");
      const found = blobs.contents.get(`batches/${id}/${round}/${file}`) ?? "";
      demand(
        found === expected,
        () => `${file} of batch ${id} is ${JSON.stringify(found)}, and its rows wrote ${JSON.stringify(expected)}`,
      );
    }
  }
}

const UNMARKED: Readonly<Record<number, string>> = {
  [STATE.succeeded]: "succeeded",
  [STATE.dead]: "failed",
  [STATE.quarantined]: "quarantined",
  [STATE.cancelled]: "aborted",
  [STATE.queued]: "left",
  [STATE.running]: "left",
};

function isBad(as: string): boolean {
  return as === "failed" || as === "quarantined";
}

function marksOf({ marks, rows }: BlockRow): string {
  return marks ?? "0".repeat(rows);
}

function isMarked({ row, lines }: KnownBlock, line: number): boolean {
  return marksOf(row)[lines.indexOf(line)] === "1";
}

function attemptKey(id: string, epoch: number, fence: number): string {
  return `${id} ${epoch} ${fence}`;
}

function wordKey(id: string, epoch: number, fence: number, line: number): string {
  return `${attemptKey(id, epoch, fence)} ${line}`;
}

/**
 * The counters of a block that is queued again start again, because one of its rows was found guilty: that takes several deaths. A single loss that falls to
 * zero is one whose worker returned.
 */
export function convicts(was: JobRow, is: JobRow): boolean {
  const after = is.errors + is.timeouts + is.interruptions + is.crashes + is.blamed + is.losses;
  return is.state === STATE.queued && !isTerminal(was.state) && was.crashes + was.losses > 1 && after === 0;
}
