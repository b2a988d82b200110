// The records that the atomic store keeps, each a text in a table of the server, and the indexes that are kept in step with the jobs.
import { crc32 } from "node:zlib";
import type { AuditRecord } from "../../../src/job/audit.ts";
import type { BatchRow, FailedRow, OutputPart } from "../../../src/job/batches.ts";
import type { StoredError } from "../../../src/job/errors.ts";
import { isSuspect } from "../../../src/job/isolation.ts";
import {
  type Counters,
  type HistoryEntry,
  isTerminal,
  type JobDraft,
  type JobState,
  type KindSettings,
  type LogLine,
  type Outcome,
} from "../../../src/job/job.ts";
import { type JobKey, type KeyLimit, type LimitSettings, NEW_RING, type Ring } from "../../../src/job/limits.ts";
import type { Incident, IncidentJob } from "../../../src/recovery/incident.ts";
import type { WorkerRecord as RegisteredWorker, WorkerState } from "../../../src/stores/liveness.ts";
import type { KindPaused } from "../../../src/stores/port.ts";
import type { Keyspace } from "./atomic-server.ts";

export interface MetaRecord {
  /** The run of the server in which these records were last begun with; null: never. */
  readonly run: string | null;
  readonly epoch: number;
  /** Grows with every script that writes: what a caller remembers of it shows how much was lost. */
  readonly writes: number;
  /** The row of the latest job. Rows are never given again, unless the enqueue itself was lost. */
  readonly lastRow: number;
  /** The number of the latest batch. */
  readonly lastBatch: number;
  /** The number of the batch behind which the next `fold` goes on. */
  readonly foldedUpTo: number;
  /** Where the walk over old jobs goes on. */
  readonly purgedUpTo: number;
  /** How it is known that scripts may have been lost, until `noticeRestore` has reported it. */
  readonly unreported: string | null;
}

export interface KindRecord {
  readonly settings: KindSettings;
  readonly paused: boolean;
  readonly pause?: KindPaused;
}

/** A pause may have an end. */
export function isKindPaused({ paused, pause }: KindRecord, now: number): boolean {
  return paused && !(pause?.until && pause.until <= now);
}

export interface JobRecord {
  readonly row: number;
  readonly id: string;
  readonly kind: string;
  readonly state: JobState;
  readonly priority: number;
  readonly dedupeKey: string | null;
  readonly createdAt: number;
  /** For a queued job: when it is due; NEVER_DUE while it waits for a resolution; null: at once. */
  readonly runAt: number | null;
  readonly startedAt: number;
  readonly deadlineAt: number | null;
  readonly finishedAt: number;
  readonly worker: string | null;
  readonly epoch: number;
  readonly fence: number;
  readonly counters: Counters;
  readonly together: number;
  readonly outcome: Outcome | null;
  readonly error: StoredError | null;
  readonly cancelRequested: boolean;
  /** The incident after which it waits to run again. */
  readonly incident: string | null;
  readonly input: string;
  readonly inputSum: number;
  readonly result: string | null;
  readonly resultSum: number | null;
  readonly progress: string | null;
  /** The row of the job that enqueued it; null: a program did. */
  readonly parent: number | null;
  /** What it counts against; empty: nothing. */
  readonly keys: readonly JobKey[];
  /** The one of its keys by which its kind is fair; null: none. */
  readonly fair: number | null;
  /** It counts against its keys: it was admitted since it was queued last. */
  readonly admitted: boolean;
  /** The key at which it waits, if that is not the first. */
  readonly door: number | null;
  /** It is first at the door of its strict key, and waits at another one. */
  readonly keepsPlace: boolean;
  /** The keys of which its latest claim was a start of a rate. */
  readonly spent: readonly number[];
  /** A debounced job is not moved beyond; null: it has no such end. */
  readonly latestAt: number | null;
  /** It ends if no attempt has begun by then; null: it does not. */
  readonly expiresAt: number | null;
  /** The trace context of its enqueue; null: none came with it. */
  readonly trace: string | null;
}

/** What a key has next to its limit. */
export interface KeyRecord {
  /** Limit and key; null: nothing was set for it. */
  readonly name: Pick<JobKey, "limit" | "key"> | null;
  readonly own: KeyLimit;
  readonly arrivalAt: number;
  readonly heldOffUntil: number;
  /** Null: it is not paused. `until` null: without an end. */
  readonly paused: { readonly reason: string; readonly at: number; readonly until: number | null } | null;
}

/** The latest enqueue that came after its job had begun, and becomes a job when that has ended. */
export interface RerunRecord {
  readonly draft: JobDraft;
  readonly latestAt: number | null;
}

/** The wait that a job's latest attempt began. */
export interface WaitRecord {
  readonly step: string;
  /** When it ends by time; null: never. */
  readonly dueAt: number | null;
  readonly signal: string | null;
  /** The rows of the jobs that it waits for; null: it waits for none. */
  readonly awaited: readonly number[] | null;
}

/** A cancel that includes the children of a job. */
export interface FamilyRecord {
  readonly actor: string;
  /** The row of the last child that was dealt with. */
  readonly cursor: number;
  /** Whether a turn has something to do; false: the parent runs and may enqueue more. */
  readonly due: boolean;
}

export interface SignalRecord {
  readonly name: string;
  readonly id: string;
  readonly payload: string;
  readonly readAt: number | null;
}

export interface StepRecord {
  readonly name: string;
  readonly result: string | null;
  readonly sum: number | null;
  readonly at: number;
  readonly attempt: number;
}

export interface BatchRecord extends BatchRow {
  /** Never given again: what belongs to a batch is found by this, not by its id. */
  readonly seq: number;
  /** Something may be to decide. */
  readonly touched: boolean;
  /** What is to be done to its blocks; null: nothing. */
  readonly tending: "release" | "cancel" | null;
  /** The number of the last block that it was done to. */
  readonly tended: number;
}

export interface BlockRecord {
  readonly batch: string;
  readonly seq: number;
  readonly round: number;
  readonly number: number;
  /** The row of its job; null: all of its rows were rejected. */
  readonly job: number | null;
  readonly rows: number;
  /** Null: none has ended. */
  readonly marks: string | null;
  readonly begun: { readonly row: number; readonly fence: number } | null;
  readonly bad: boolean;
  /** Rejected ones have the row -1. */
  readonly failed: readonly FailedRow[];
  readonly outputs: readonly OutputPart[];
}

export interface WorkerRecord extends RegisteredWorker {
  readonly state: WorkerState;
  readonly startedAt: number;
  readonly heartbeatAt: number;
  readonly beats: number;
  readonly loopLagMs: number;
  readonly lastWord: string | null;
  /** The run of the server in which it registered. */
  readonly run: string;
  readonly incident: string | null;
}

export interface IncidentRecord extends Omit<Incident, "jobs" | "jobCount"> {
  readonly suspectsAtDeath: number;
  readonly cursor: number;
  readonly judgedAt: number | null;
}

export interface IncidentJobRecord extends IncidentJob {
  readonly row: number;
  readonly judgement: string | null;
}

const FRESH: MetaRecord = {
  run: null,
  epoch: 0,
  writes: 0,
  lastRow: 0,
  lastBatch: 0,
  foldedUpTo: 0,
  purgedUpTo: 0,
  unreported: null,
};

/** The checksum of a stored text and of whose it is; null: there is no text. */
export function sumOf(text: string, owner: string): number;
export function sumOf(text: string | null, owner: string): number | null;
export function sumOf(text: string | null, owner: string): number | null {
  return text === null ? null : crc32(`${owner}\n${text}`);
}

/** Whose a step's result is. */
export function stepOwner(id: string, name: string): string {
  return `${id}\n${name}`;
}

/** Of a job that is queued again, or has ended. */
export const NOT_ADMITTED = { admitted: false, door: null, keepsPlace: false, spent: [] } as const;

const NEW_KEY: KeyRecord = { name: null, own: {}, arrivalAt: 0, heldOffUntil: 0, paused: null };

/** Can be claimed. */
export function isDue(job: JobRecord, now: number): boolean {
  return isInTime(job, now) && (job.admitted || job.keys.length === 0);
}

/** Could be claimed if its keys had room for it. */
export function isHeld(job: JobRecord, now: number): boolean {
  return isInTime(job, now) && !job.admitted && job.keys.length > 0;
}

function isInTime({ state, runAt }: JobRecord, now: number): boolean {
  return state === "queued" && (runAt === null || runAt <= now);
}

/** Ready, and nothing keeps it from running with any others. */
export function isFresh(job: JobRecord, now: number): boolean {
  return isDue(job, now) && !isSuspect(job.counters);
}

/** What one script reads and writes, as records. */
export class Data {
  readonly keys: Keyspace;
  readonly now: number;

  constructor(keys: Keyspace) {
    this.keys = keys;
    this.now = keys.now;
  }

  #read<R>(table: string, field: string | number): R | null {
    const text = this.keys.get(table, String(field));
    return text === null ? null : (JSON.parse(text) as R);
  }

  #write(table: string, field: string | number, record: unknown): void {
    this.keys.set(table, String(field), JSON.stringify(record));
  }

  meta(): MetaRecord {
    return this.#read<MetaRecord>("meta", "") ?? FRESH;
  }

  putMeta(changed: Partial<MetaRecord>): void {
    this.#write("meta", "", { ...this.meta(), ...changed });
  }

  kind(name: string): KindRecord | null {
    return this.#read("kinds", name);
  }

  kindNames(): string[] {
    return this.keys.fields("kinds").toSorted();
  }

  putKind(kind: KindRecord): void {
    this.#write("kinds", kind.settings.name, kind);
  }

  job(row: number): JobRecord | null {
    return this.#read("jobs", row);
  }

  jobById(id: string): JobRecord | null {
    const row = this.keys.get("ids", id);
    return row === null ? null : this.job(Number(row));
  }

  /** The unfinished job of the kind that has this dedupe key. */
  keyHolder(kind: string, dedupeKey: string | null): JobRecord | null {
    const row = dedupeKey === null ? null : this.keys.get("keys", keyField(kind, dedupeKey));
    return row === null ? null : this.job(Number(row));
  }

  rows(): number[] {
    return this.#rowsOf("jobs");
  }

  jobs(): JobRecord[] {
    return this.rows().map((row) => this.job(row)!);
  }

  /** By their rows. */
  queued(): JobRecord[] {
    return this.#rowsOf("queued").map((row) => this.job(row)!);
  }

  running(): JobRecord[] {
    return this.#rowsOf("running").map((row) => this.job(row)!);
  }

  /** The running jobs of a worker, by their rows. */
  held(worker: string): JobRecord[] {
    return this.#rowsOf(heldTable(worker)).map((row) => this.job(row)!);
  }

  holds(worker: string): boolean {
    return this.keys.fields(heldTable(worker)).length > 0;
  }

  #rowsOf(table: string): number[] {
    return this.keys
      .fields(table)
      .map(Number)
      .toSorted((a, b) => a - b);
  }

  /** The record and, in the same script, every index that it is in. */
  putJob(job: JobRecord): void {
    const before = this.job(job.row);
    const stale = before === null ? new Map<string, readonly [string, string]>() : indexesOf(before);
    const wanted = indexesOf(job);
    for (const [key, [table, field]] of stale) if (!wanted.has(key)) this.keys.delete(table, field);
    for (const [key, [table, field]] of wanted) if (!stale.has(key)) this.keys.set(table, field, String(job.row));
    this.#write("jobs", job.row, job);
  }

  deleteJob(job: JobRecord): void {
    for (const [table, field] of indexesOf(job).values()) this.keys.delete(table, field);
    for (const table of ["jobs", "steps", "history", "logs", "waits", "signals", "reruns"])
      this.keys.delete(table, String(job.row));
    this.keys.delete("planned", job.id);
  }

  steps(row: number): StepRecord[] {
    return this.#read("steps", row) ?? [];
  }

  putSteps(row: number, steps: readonly StepRecord[]): void {
    this.#write("steps", row, steps);
  }

  history(row: number): HistoryEntry[] {
    return this.#read("history", row) ?? [];
  }

  addHistory(row: number, entry: HistoryEntry): void {
    this.#write("history", row, [...this.history(row), entry]);
  }

  log(row: number): LogLine[] {
    return this.#read("logs", row) ?? [];
  }

  putLog(row: number, lines: readonly LogLine[]): void {
    this.#write("logs", row, lines);
  }

  batch(id: string): BatchRecord | null {
    return this.#read("batches", id);
  }

  batchByKey(kind: string, key: string): BatchRecord | null {
    const id = this.keys.get("batchKeys", keyField(kind, key));
    return id === null ? null : this.batch(id);
  }

  /** In the order in which they were opened. */
  batches(): BatchRecord[] {
    const all = this.keys.fields("batches").map((id) => this.batch(id)!);
    return all.toSorted((a, b) => a.seq - b.seq);
  }

  putBatch(batch: BatchRecord): void {
    this.#write("batches", batch.id, batch);
    if (batch.key !== null) this.keys.set("batchKeys", keyField(batch.kind, batch.key), batch.id);
  }

  deleteBatch({ id, kind, key, seq }: BatchRecord): void {
    this.keys.delete("batches", id);
    if (key !== null) this.keys.delete("batchKeys", keyField(kind, key));
    this.keys.set("deletedBatches", String(seq), "");
  }

  block(batch: number, round: number, number: number): BlockRecord | null {
    return this.#read(blocksTable(batch), blockField(round, number));
  }

  /** The block that a job runs; null: it is an ordinary job. */
  blockOf(job: number): BlockRecord | null {
    const at = this.#read<readonly [batch: number, round: number, number: number]>("blockJobs", job);
    return at === null ? null : this.block(...at);
  }

  /** Of one round, by their numbers. */
  blocks(batch: number, round: number): BlockRecord[] {
    return this.#blocks(batch).filter((block) => block.round === round);
  }

  #blocks(batch: number): BlockRecord[] {
    const all = this.keys
      .fields(blocksTable(batch))
      .map((field) => this.#read<BlockRecord>(blocksTable(batch), field)!);
    return all.toSorted((a, b) => a.round - b.round || a.number - b.number);
  }

  putBlock(block: BlockRecord): void {
    const { seq, round, number, job } = block;
    this.#write(blocksTable(seq), blockField(round, number), block);
    if (job !== null) this.#write("blockJobs", job, [seq, round, number]);
  }

  deleteBlock({ seq, round, number, job }: BlockRecord): void {
    this.keys.delete(blocksTable(seq), blockField(round, number));
    if (job !== null) this.keys.delete("blockJobs", String(job));
  }

  /** Some blocks of batches that were deleted. A batch of which none is left is forgotten. */
  orphanedBlocks(limit: number): BlockRecord[] {
    const found: BlockRecord[] = [];
    for (const seq of this.#rowsOf("deletedBatches")) {
      const blocks = this.#blocks(seq);
      if (blocks.length === 0) this.keys.delete("deletedBatches", String(seq));
      found.push(...blocks);
    }
    return found.slice(0, limit);
  }

  limit(name: string): LimitSettings | null {
    return this.#read("limits", name);
  }

  putLimit(limit: LimitSettings): void {
    this.#write("limits", limit.name, limit);
  }

  key(id: number): KeyRecord {
    return this.#read<KeyRecord>("limited", id) ?? NEW_KEY;
  }

  keyIds(): number[] {
    return this.#rowsOf("limited");
  }

  putKey(id: number, key: KeyRecord): void {
    this.#write("limited", id, key);
  }

  /** Where the ring of a gate stands. */
  ring(gate: number): Ring {
    return this.#read<Ring>("rings", gate) ?? NEW_RING;
  }

  putRing(gate: number, ring: Ring): void {
    this.#write("rings", gate, ring);
  }

  rerun(row: number): RerunRecord | null {
    return this.#read("reruns", row);
  }

  putRerun(row: number, rerun: RerunRecord): void {
    this.#write("reruns", row, rerun);
  }

  deleteRerun(row: number): void {
    this.keys.delete("reruns", String(row));
  }

  family(parent: number): FamilyRecord | null {
    return this.#read("families", parent);
  }

  putFamily(parent: number, family: FamilyRecord): void {
    this.#write("families", parent, family);
  }

  deleteFamily(parent: number): void {
    this.keys.delete("families", String(parent));
  }

  /** What people changed, the oldest first. */
  audit(): readonly AuditRecord[] {
    return this.#read("audit", 0) ?? [];
  }

  putAudit(records: readonly AuditRecord[]): void {
    this.#write("audit", 0, records);
  }

  /** The parents whose cancel includes their children. */
  families(): number[] {
    return this.#rowsOf("families");
  }

  /** The rows of its children that have not ended. */
  unfinishedChildren(parent: number): number[] {
    return this.#rowsOf(childrenTable(parent));
  }

  wait(row: number): WaitRecord | null {
    return this.#read("waits", row);
  }

  putWait(row: number, wait: WaitRecord): void {
    this.#write("waits", row, wait);
  }

  /** The oldest first. */
  signals(row: number): SignalRecord[] {
    return this.#read("signals", row) ?? [];
  }

  putSignals(row: number, signals: readonly SignalRecord[]): void {
    this.#write("signals", row, signals);
  }

  /** The jobs that wait for this one. */
  waiters(row: number): number[] {
    return this.#rowsOf(waitersTable(row));
  }

  /** `open`: the job that is waited for has not ended. */
  addWaiter(row: number, waiter: number, open: boolean): void {
    this.keys.set(waitersTable(row), String(waiter), "");
    if (open) this.keys.set(awaitedTable(waiter), String(row), "");
    else this.keys.delete(awaitedTable(waiter), String(row));
  }

  removeWaiter(row: number, waiter: number): void {
    this.keys.delete(waitersTable(row), String(waiter));
    this.keys.delete(awaitedTable(waiter), String(row));
  }

  /** Whether a job that this one waits for has not ended. */
  awaitsAny(waiter: number): boolean {
    return this.keys.fields(awaitedTable(waiter)).length > 0;
  }

  worker(id: string): WorkerRecord | null {
    return this.#read("workers", id);
  }

  workers(): WorkerRecord[] {
    return this.keys
      .fields("workers")
      .toSorted()
      .map((id) => this.worker(id)!);
  }

  putWorker(worker: WorkerRecord): void {
    this.#write("workers", worker.id, worker);
  }

  deleteWorker(id: string): void {
    this.keys.delete("workers", id);
  }

  incident(id: string): IncidentRecord | null {
    return this.#read("incidents", id);
  }

  /** By their ids, which sort by time. */
  incidents(): IncidentRecord[] {
    return this.keys
      .fields("incidents")
      .toSorted()
      .map((id) => this.incident(id)!);
  }

  putIncident(incident: IncidentRecord): void {
    this.#write("incidents", incident.id, incident);
  }

  deleteIncident(id: string): void {
    for (const field of this.keys.fields(incidentTable(id))) this.keys.delete(incidentTable(id), field);
    this.keys.delete("incidents", id);
  }

  incidentJob(incident: string, row: number): IncidentJobRecord | null {
    return this.#read(incidentTable(incident), row);
  }

  incidentJobs(incident: string): IncidentJobRecord[] {
    return this.#rowsOf(incidentTable(incident)).map((row) => this.incidentJob(incident, row)!);
  }

  putIncidentJob(incident: string, job: IncidentJobRecord): void {
    this.#write(incidentTable(incident), job.row, job);
  }

  /** What is in an index and should not be, or should be and is not. */
  wrongIndexes(): string[] {
    const wanted = new Map(this.jobs().flatMap((job) => [...indexesOf(job)].map(([key, at]) => [key, { job, at }])));
    const parents = new Set(this.jobs().flatMap(({ parent }) => parent ?? []));
    const tables = [...this.workers().map(({ id }) => heldTable(id)), ...[...parents].map(childrenTable)];
    const found = ["ids", "keys", "queued", "running", ...tables].flatMap((table) =>
      this.keys.fields(table).map((field) => indexKey(table, field)),
    );
    const missing = [...wanted].flatMap(
      ([
        key,
        {
          job,
          at: [table, field],
        },
      ]) => (this.keys.get(table, field) === String(job.row) ? [] : [`job ${job.id} is missing in ${key}`]),
    );
    return [...missing, ...found.filter((key) => !wanted.has(key)).map((key) => `${key} speaks of no such job`)];
  }
}

function heldTable(worker: string): string {
  return `held/${worker}`;
}

function childrenTable(parent: number): string {
  return `children/${parent}`;
}

function waitersTable(row: number): string {
  return `waiters/${row}`;
}

function awaitedTable(waiter: number): string {
  return `awaited/${waiter}`;
}

function blocksTable(batch: number): string {
  return `blocks/${batch}`;
}

function blockField(round: number, number: number): string {
  return `${round}/${number}`;
}

function incidentTable(incident: string): string {
  return `incident/${incident}`;
}

function keyField(kind: string, dedupeKey: string): string {
  return `${kind}\n${dedupeKey}`;
}

function indexKey(table: string, field: string): string {
  return `${table} ${field}`;
}

/** Where a job is found next to its own record: table and field by a name of both. */
function indexesOf(job: JobRecord): Map<string, readonly [string, string]> {
  const row = String(job.row);
  const at: (readonly [string, string])[] = [["ids", job.id]];
  if (!isTerminal(job.state) && job.dedupeKey !== null) at.push(["keys", keyField(job.kind, job.dedupeKey)]);
  if (!isTerminal(job.state) && job.parent !== null) at.push([childrenTable(job.parent), row]);
  if (job.state === "queued") at.push(["queued", row]);
  if (job.state === "running") at.push(["running", row], [heldTable(job.worker!), row]);
  return new Map(at.map((one) => [indexKey(...one), one]));
}
