// Batches as the port wants them. A block is a job whose record says which rows it has; each verb is one script, or one for each bounded piece.
import {
  BATCH_STATES,
  type BatchDraft,
  type BatchRow,
  type BatchState,
  blockId,
  type BlockDraft,
  type RowSums,
  type Tolerance,
} from "../../job/batches.ts";
import { ErrorCode, OutliveError, type StoredError } from "../../job/errors.ts";
import { BY_HAND } from "../../job/transitions.ts";
import type { Inconsistency } from "../store-parts.ts";
import type { AppendAnswer, BatchEnd, Batches, BatchFilter, FailedBlock, KeptBlock, OutputPage } from "../batches.ts";
import { keptJob, STATE, storedError } from "../rows.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import {
  assertDeclared,
  changeArgs,
  checked,
  draftsArgs,
  entryArgs,
  failedArgs,
  fieldsOf,
  inputOwner,
  partOwner,
  rowOwner,
  splitInto,
  unchecked,
} from "./encoding.ts";

/** How much one script does, so that it takes less than 10 ms of the server. A caller that asks for more gets it in several, or is asked to call again. */
const BLOCKS_AT_ONCE = 70;
const APPENDED_AT_ONCE = 50;
const FOLDED_AT_ONCE = 250;
const READ_AT_ONCE = 100;

const AS = Object.fromEntries(BATCH_STATES.map((state, code) => [state, String(code)])) as Readonly<
  Record<BatchState, string>
>;
const stateOf = (code: string): BatchState => BATCH_STATES[Number(code)]!;
const orMissing = (reply: Reply): BatchState | "missing" => (reply === "" ? "missing" : stateOf(String(reply)));

/** How a block is asked to end, and the change of one that is queued. */
const CANCEL_ARGS: readonly string[] = [BY_HAND.cancel.request, ...changeArgs(BY_HAND.cancel.changes.queued!, "")];

export function batches(connection: Connection): Batches {
  /** Where the next call goes on: batches that no process manages to end must not hide the others, nor those that can't be deleted yet. */
  let foldedUpTo = "0";
  let purgeFrom = 0;
  return {
    ...batchReads(connection),
    async open(draft, entry) {
      const reply = await connection.eval("openBatch", [...entryArgs(entry), ...draftArgs(draft)]);
      assertDeclared(reply);
      const [created, flat] = reply as unknown as [number, string[]];
      return { created: created === 1, batch: batchRow(flat) };
    },
    append: (batch, round, blocks, asNext = false) => append(connection, batch, round, blocks, asNext),
    seal: async (batch, round, entry) =>
      orMissing(await connection.eval("sealBatch", [...entryArgs(entry), batch, String(round)])),
    abort: async (batch, entry) => orMissing(await connection.eval("abortBatch", [...entryArgs(entry), batch])),
    async tend(limit) {
      return (await connection.eval("tendBatches", [String(Math.min(limit, BLOCKS_AT_ONCE)), ...CANCEL_ARGS])) === 1;
    },
    async fold(limit) {
      const args = [foldedUpTo, String(Math.min(limit, FOLDED_AT_ONCE))];
      const [last, ids] = (await connection.eval("foldBatches", args)) as unknown as [string, string[]];
      foldedUpTo = last;
      return ids;
    },
    async finish({ batch, round, from, to, follow }: BatchEnd) {
      const reply = await connection.eval("finishBatch", [
        batch,
        String(round),
        AS[from],
        AS[to],
        ...draftsArgs(follow),
      ]);
      assertDeclared(reply);
      return reply === 1;
    },
    async setOutputs(batch, round, outputs) {
      await connection.eval("setOutputs", [batch, String(round), outputs]);
    },
    async reopen(batch, round, draft, entry) {
      const args = [...entryArgs(entry), batch, String(round), ...draftsArgs([draft])];
      const reply = await connection.eval("reopenBatch", args);
      assertDeclared(reply);
      return reply === 1;
    },
    async purge(endedOlderThanMs, limit) {
      const args = [endedOlderThanMs, Math.min(limit, BLOCKS_AT_ONCE), purgeFrom].map(String);
      const reply = await connection.eval("purgeBatches", [...args, ...CANCEL_ARGS]);
      const [gone, more, from] = reply as [number, number, number];
      purgeFrom = from;
      return { batches: gone, more: more === 1 };
    },
  };
}

function draftArgs({ id, kind, key, context, priority, blockRows, tolerance, held }: BatchDraft): string[] {
  const tolerates = tolerance === null ? "" : JSON.stringify(tolerance);
  const of = [id, kind, key ?? "", checked(context, id), String(priority), String(blockRows)];
  return [...of, tolerates, held ? "1" : "0"];
}

/**
 * In pieces. Each is carried out whole or not at all; a number that is there adds nothing, so a submitter that was killed between two of them, or did not
 * get its answer, appends again and doubles nothing.
 */
async function append(
  connection: Connection,
  batch: string,
  round: number,
  blocks: readonly BlockDraft[],
  asNext: boolean,
): Promise<AppendAnswer> {
  let [added, rows] = [0, 0];
  for (let from = 0; from === 0 || from < blocks.length; from += APPENDED_AT_ONCE) {
    const piece = blocks.slice(from, from + APPENDED_AT_ONCE);
    const args = [batch, String(round), asNext ? "1" : "0", String(piece.length)];
    for (const { number, job, rows: count, rejected } of piece) {
      args.push(String(number), String(count), ...draftsArgs(job === null ? [] : [job]), String(rejected.length));
      for (const row of rejected) args.push(...failedArgs(row, blockId(batch, round, number)));
    }
    const reply = await connection.eval("appendBlocks", args);
    assertDeclared(reply);
    const [is, what, count] = reply as [string, number | string, number];
    if (is === "missing") return { is };
    if (is === "moved") return { is, blocks: Number(what), rows: count, added };
    if (is === "closed") return { is, state: stateOf(String(what)) };
    if (is === "!job") throw notABlock(String(what));
    added += Number(what);
    rows += count;
  }
  return { is: "appended", blocks: added, rows };
}

function notABlock(jobId: string): OutliveError {
  return new OutliveError(
    ErrorCode.wrongState,
    `There is a job ${jobId} already, and it is not a block of this batch.`,
    "Give jobs ids of another form than those of blocks, BATCH:ROUND:NUMBER. Nothing was written.",
    { jobId },
  );
}

// ---- checks

type Counted = readonly [blocks: number, next: string, ...sums: readonly number[]];
const COUNTED = ["blocks", "rows", "succeeded", "failed", "quarantined", "aborted"] as const;

/** What is kept of each batch, against what its blocks came to in its round. Exact only while nothing of the batch ends. */
export async function batchInconsistencies(connection: Connection): Promise<readonly Inconsistency[]> {
  const wrong: { readonly batch: string; readonly text: string }[] = [];
  const orphans: string[] = [];
  const reads = batchReads(connection);
  for (let after: string | null = null; ;) {
    const page: readonly BatchRow[] = await reads.list({}, READ_AT_ONCE, after);
    for (const batch of page) {
      const { missing, ...own } = await countedRows(connection, batch);
      const kept: Record<(typeof COUNTED)[number], number> = { blocks: batch.blocks, rows: batch.rows, ...batch.sums };
      if (missing > 0) orphans.push(batch.id);
      const differ = COUNTED.filter((name) => kept[name] !== own[name]);
      if (differ.length > 0)
        wrong.push({
          batch: batch.id,
          text: `batch ${batch.id}: ${differ.map((name) => `${name} ${kept[name]}, its blocks have ${own[name]}`).join("; ")}`,
        });
    }
    if (page.length < READ_AT_ONCE) break;
    after = page.at(-1)!.id;
  }
  const found: Inconsistency[] = [];
  if (wrong.length > 0)
    found.push({
      what: "batch-disagrees",
      detail: `${wrong.length} batch(es) do not agree with their blocks: ${wrong[0]!.text}`,
      names: wrong.slice(0, MAX_NAMES).map(({ batch }) => batch),
      count: wrong.length,
    });
  if (orphans.length > 0)
    found.push({
      what: "block-without-job",
      detail: `${orphans.length} batch(es) have blocks whose jobs are gone`,
      names: orphans.slice(0, MAX_NAMES),
      count: orphans.length,
    });
  return found;
}

const MAX_NAMES = 20;

async function countedRows(
  connection: Connection,
  { id, round }: BatchRow,
): Promise<Record<(typeof COUNTED)[number] | "missing", number>> {
  const sums = { blocks: 0, rows: 0, succeeded: 0, failed: 0, quarantined: 0, aborted: 0, missing: 0 };
  const names = ["rows", "succeeded", "failed", "quarantined", "aborted", "missing"] as const;
  for (let after = "-1"; after !== "";) {
    const [blocks, next, ...counts] = (await connection.eval("countRows", [
      id,
      String(round),
      after,
    ])) as unknown as Counted;
    sums.blocks += blocks;
    names.forEach((name, at) => (sums[name] += counts[at]!));
    after = next;
  }
  return sums;
}

// ---- reads

type Reads = Pick<Batches, "get" | "list" | "failures" | "blocks" | "outputs" | "outputFiles">;

function batchReads(connection: Connection): Reads {
  return {
    async get(ids) {
      const found: BatchRow[] = [];
      for (let from = 0; from < ids.length; from += READ_AT_ONCE) {
        const piece = ids.slice(from, from + READ_AT_ONCE);
        const list = (await connection.eval("getBatches", [String(piece.length), ...piece])) as unknown as string[][];
        found.push(...list.map(batchRow));
      }
      return found;
    },
    list: (filter, limit, after) => listBatches(connection, filter, limit, after),
    failures: (batch, round, after, limit) => failedBlocks(connection, batch, round, after, limit),
    blocks: (batch, round, after, limit) => keptBlocks(connection, batch, round, after, limit),
    outputs: (batch, round, file, after, limit) => outputPage(connection, { batch, round, file }, after, limit),
    outputFiles: async (batch) => (await connection.eval("outputFiles", [batch])) as string[],
  };
}

const sumsOf = ([succeeded, failed, quarantined, aborted]: readonly (string | undefined)[]): RowSums => ({
  succeeded: Number(succeeded),
  failed: Number(failed),
  quarantined: Number(quarantined),
  aborted: Number(aborted),
});

export function batchRow(flat: readonly string[]): BatchRow {
  const b = fieldsOf(flat) as Readonly<Record<string, string | undefined>>;
  const id = b["id"]!;
  const context = unchecked(b["context"]!, id);
  const at = (name: string): number | null => (b[name] === undefined ? null : Number(b[name]));
  return {
    id,
    kind: b["kindName"]!,
    key: b["key"] || null,
    state: stateOf(b["state"]!),
    held: b["held"] === "1",
    context: context.text ?? "null",
    priority: Number(b["priority"]),
    blockRows: Number(b["blockRows"]),
    tolerance: b["tolerance"] === "" ? null : (JSON.parse(b["tolerance"]!) as Tolerance),
    round: Number(b["round"]),
    rows: Number(b["rows"]),
    blocks: Number(b["blocks"]),
    sums: sumsOf([b["succeeded"], b["failed"], b["quarantined"], b["aborted"]]),
    earlier: sumsOf(b["earlier"]!.split(",")),
    createdAt: Number(b["created"]),
    sealedAt: at("sealed"),
    endedAt: at("ended"),
    pace:
      b["toAt"] === undefined
        ? null
        : { fromAt: at("fromAt")!, fromRows: at("fromRows")!, toAt: at("toAt")!, toRows: at("toRows")! },
    outputs: b["outputs"] ?? null,
    ...(!context.intact && { corrupt: true as const }),
  };
}

async function listBatches(
  connection: Connection,
  { kind, state, createdAfter }: BatchFilter,
  limit: number,
  after: string | null,
): Promise<readonly BatchRow[]> {
  const filter = [kind ?? "", state === undefined ? "" : AS[state], String(createdAfter ?? "")];
  const found: BatchRow[] = [];
  let place = ["", after ?? ""];
  while (found.length < limit) {
    const wanted = String(Math.min(limit - found.length, READ_AT_ONCE));
    const [list, next] = (await connection.eval("listBatches", [...place, ...filter, wanted])) as unknown as [
      string[][],
      string,
    ];
    found.push(...list.map(batchRow));
    if (next === "") break;
    place = [next, ""];
  }
  return found;
}

type WholeReply = readonly [size: string, marks: string, state: number, kind: string, input: string, error: string];

async function failedBlocks(
  connection: Connection,
  batch: string,
  round: number,
  after: number | null,
  limit: number,
): Promise<FailedBlock[]> {
  const args = [batch, String(round), String(after ?? -1), String(Math.min(limit, READ_AT_ONCE)), ""];
  const list = (await connection.eval("readBlocks", args)) as unknown as [string, string[], "" | WholeReply][];
  return list.map(([number, failures, whole]) => ({
    number: Number(number),
    rows: failedRows(blockId(batch, round, Number(number)), failures),
    whole: whole === "" ? null : wholeEnd(whole),
  }));
}

async function keptBlocks(
  connection: Connection,
  batch: string,
  round: number,
  after: number | null,
  limit: number,
): Promise<KeptBlock[]> {
  const args = [batch, String(round), String(after ?? -1), String(Math.min(limit, READ_AT_ONCE)), "1"];
  const list = (await connection.eval("readBlocks", args)) as unknown as [string, string[], "" | WholeReply][];
  return list.map(([number, failures, job]) => {
    const rows = failedRows(blockId(batch, round, Number(number)), failures);
    if (job === "") return { number: Number(number), rows, job: null };
    const [size, marks, state, kind, input, error] = job;
    const text = unchecked(input, inputOwner(kind)).text ?? "null";
    return {
      number: Number(number),
      rows,
      job: keptJob(state, text, marks === "" ? "0".repeat(Number(size)) : marks, error === "" ? null : error),
    };
  });
}

function wholeEnd([size, stored, state, kind, input, error]: WholeReply): FailedBlock["whole"] {
  const marks = stored === "" ? "0".repeat(Number(size)) : stored;
  if (!marks.includes("0")) return null;
  return {
    input: unchecked(input, inputOwner(kind)).text ?? "null",
    marks,
    error: error === "" ? null : storedError(error),
    as: state === STATE.dead ? "failed" : "quarantined",
  };
}

/** By line, and of one line in the order in which they failed. */
function failedRows(block: string, packed: readonly string[]): FailedBlock["rows"] {
  const rows = packed.map((text) => {
    const [, line, as, stored, error] = splitInto(text, 5);
    const { text: input, intact } = unchecked(stored!, rowOwner(block, Number(line)));
    return {
      line: Number(line),
      input: input ?? "null",
      error: intact ? storedError(error) : damagedRow(Number(line)),
      as: as as FailedBlock["rows"][number]["as"],
    };
  });
  return rows.toSorted((a, b) => a.line - b.line);
}

function damagedRow(line: number): StoredError {
  return {
    name: "Corrupt",
    code: ErrorCode.corrupt,
    message: `the stored input of line ${line} does not match its checksum: the store was damaged. Do not run it again; submit the row itself.`,
  };
}

interface OutputOf {
  readonly batch: string;
  readonly round: number;
  readonly file: string;
}

async function outputPage(
  connection: Connection,
  of: OutputOf,
  after: number | null,
  limit: number,
): Promise<OutputPage> {
  const { batch, round, file } = of;
  const wanted = Math.min(limit, READ_AT_ONCE);
  // One more than is returned, to know whether any follows.
  const args = [batch, String(round), file, String(after ?? -1), String(wanted + 1)];
  const list = (await connection.eval("outputPage", args)) as unknown as [string, string[]][];
  const blocks = list.slice(0, wanted).map(([number, parts]) => parts.map((part) => textsOf(of, Number(number), part)));
  return { blocks, next: list.length > wanted ? Number(list[wanted - 1]![0]) : null };
}

/** Lines that had ended before they were written again are left out. */
function textsOf({ batch, round, file }: OutputOf, number: number, packed: string): string {
  const [dropped, stored] = splitInto(packed, 2);
  const { text, intact } = unchecked(stored!, partOwner(blockId(batch, round, number), file));
  if (!intact || text === null) throw damagedPart(batch, file, round, number);
  if (dropped === "") return text;
  const left = new Set(dropped!.split(",").map(Number));
  return JSON.stringify((JSON.parse(text) as [line: number, text: string][]).filter(([line]) => !left.has(line)));
}

function damagedPart(batch: string, file: string, round: number, number: number): OutliveError {
  return new OutliveError(
    ErrorCode.corrupt,
    `What block ${number} of round ${round} of batch ${batch} wrote to ${file} does not match its checksum: the store was damaged.`,
    "Restore a backup, or submit the rows of that block as another batch. To find more: outlive check --integrity.",
    { batch, round, block: number, file },
  );
}
