// The store port on SQLite, assembled: every method is one operation of the writer or one short read. The statements are in the
// files beside it, one role each.
import type { Clock, Random } from "../../core/clock.ts";
import { type CommitControl, unlessInterrupted } from "../../core/commit.ts";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import type { Incident, IncidentSummary } from "../../core/incident.ts";
import type { Inconsistency, Opening } from "../../core/integrity.ts";
import type { Enqueued, JobDetails, JobDraft, KindSettings } from "../../core/job.ts";
import type { Lease } from "../../core/lease.ts";
import type { Loss, LossVerdict, LostJob, Resolution } from "../../core/losses.ts";
import type { WorkerRecord, WorkerRow } from "../../core/liveness.ts";
import type {
  AttemptWrite,
  Backup,
  BackupOptions,
  Beat,
  BeatAnswer,
  Condemned,
  CondemnRequest,
  HeldJob,
  HeldJobs,
  JobFilter,
  KindCounts,
  ListPage,
  LockHolder,
  OperatorAnswer,
  OverdueQuery,
  PurgeAnswer,
  PurgeRequest,
  TakeBackAnswer,
  TakeBackRequest,
  Room,
  SettleAndClaim,
  Settlement,
  Store,
  StoreHealth,
  TransactionBody,
  Upkeep,
  WorkerQuery,
  WorkerSuspects,
  WriteAnswer,
} from "../../core/store.ts";
import { writeOfAttempt } from "./attempt-writes.ts";
import type { Bell } from "./bell.ts";
import { closed } from "../closed.ts";
import { Ringing } from "../ringing.ts";
import { type CommitDeps, commitJob } from "./commit.ts";
import { type Database, storeReplaced } from "./database.ts";
import { backupFile, checkFile, checkOpen, findInconsistencies, findStrayLocks, tendWal } from "./doctor/index.ts";
import { inOurWords } from "./errors.ts";
import { whenFree } from "./when-free.ts";
import { insertJobs } from "./enqueue.ts";
import { blocker, storeHealth } from "./health.ts";
import { getIncident, latestRecovery, listIncidents } from "./incidents.ts";
import { countAhead, countJobs, getJob, heldSuspects, listJobs } from "./inspect.ts";
import { Kinds } from "./kinds.ts";
import { ensureIdentity, latestOpening, noteOpening, storeIdentity } from "./meta.ts";
import { cancelJob, retryJob, setPaused } from "./operate.ts";
import { Purging } from "./purge.ts";
import { Recovering } from "./recover.ts";
import { Settling } from "./settle.ts";
import { type FilePlace, type MarkFile, markFile, whyRestored } from "./file-mark.ts";
import { judgeLoss, lostJobs, openLosses, resolveLoss } from "./losses.ts";
import { runUserBody, type SqliteTransaction } from "./transaction.ts";
import { takeTurn, type TurnDeps } from "./turn.ts";
import { Workers } from "./workers.ts";
import { Writer } from "./writer.ts";

export interface SqliteStoreDeps {
  readonly db: Database;
  readonly clock: Clock;
  readonly random: Random;
  readonly newId: () => string;
  /** Which boot this is. Left out: this connection is not one that can notice a restore. */
  readonly bootId?: string;
  /** Where the mark of the file is kept. Left out: next to the file. */
  readonly mark?: MarkFile;
  /** Rings other processes; null for a database that only this one has. */
  readonly bell: Bell | null;
  /** Called once, before the connection is closed. */
  readonly onClose?: () => void;
}

/** How long a piece of a purge holds the write lock, and the thread. */
const PURGE_MS = 20;

export class SqliteStore implements Store<SqliteTransaction> {
  readonly name = "sqlite";
  readonly #deps: SqliteStoreDeps;
  readonly #db: Database;
  readonly #writer: Writer;
  readonly #kinds: Kinds;
  readonly #workers: Workers;
  readonly #settling: Settling;
  readonly #recovering: Recovering;
  readonly #purging: Purging;
  readonly #ringing: Ringing;
  readonly #markFile: MarkFile;
  /** For what is done inside a transaction. */
  readonly #parts: TurnDeps & CommitDeps;
  #closed = false;

  constructor(deps: SqliteStoreDeps) {
    this.#deps = deps;
    this.#db = deps.db;
    this.#markFile = deps.mark ?? markFile(deps.db.path);
    this.#kinds = new Kinds(deps.db);
    this.#workers = new Workers(deps.db);
    this.#writer = new Writer(deps.db, deps.clock, deps.random, () => {
      this.#kinds.forgetIds();
      this.#workers.undone();
    });
    this.#settling = new Settling(deps.db, this.#workers);
    this.#recovering = new Recovering(deps.db, this.#kinds, this.#workers);
    this.#purging = new Purging(deps.db, this.#kinds);
    this.#ringing = new Ringing(deps.bell);
    const { db, newId } = deps;
    this.#parts = { db, newId, kinds: this.#kinds, workers: this.#workers, settling: this.#settling };
  }

  declare(kinds: readonly KindSettings[]): Promise<void> {
    return this.#writer.write("declaring kinds", () => this.#kinds.declare(kinds));
  }

  async enqueue(drafts: readonly JobDraft[]): Promise<readonly Enqueued[]> {
    const enqueued = await this.#writer.write("enqueueing", () =>
      insertJobs(this.#db, this.#kinds, drafts, this.#now()),
    );
    this.#ringing.ring();
    return enqueued;
  }

  register(worker: WorkerRecord): Promise<{ readonly epoch: number; readonly now: number }> {
    return this.#writer.write("registering a worker", () => this.#workers.register(worker, this.#now()));
  }

  async settleAndClaim(workerId: string, settlements: readonly Settlement[], room: Room): Promise<SettleAndClaim> {
    const answer = await this.#writer.writeNow("settling and claiming", () =>
      takeTurn(this.#parts, workerId, settlements, room, this.#now()),
    );
    // What went back into the queue may be somebody else's to run.
    if (settlements.some(({ change }) => change.to === "queued")) this.#ringing.ring();
    return answer;
  }

  async commit<T>(
    settlement: Settlement,
    body: (tx: SqliteTransaction) => T,
    encode: (value: T) => string | null,
    control?: CommitControl,
  ): Promise<{ answer: WriteAnswer; value: T | undefined }> {
    const written = this.#writer.write(
      `committing job ${settlement.lease.jobId}`,
      () => {
        control?.runs();
        const committed = commitJob(this.#parts, settlement, body, encode, this.#now());
        control?.commits();
        return committed;
      },
      true,
    );
    const done = await (control ? unlessInterrupted(control, written) : written);
    if (done.enqueued > 0) this.#ringing.ring();
    return done;
  }

  /** A body that returns a promise is refused when it does. */
  async transact<T>(body: TransactionBody<SqliteTransaction, T>): Promise<T> {
    const { value, enqueued } = await this.#writer.write(
      "a transaction of yours",
      () => runUserBody(this.#parts, this.#now(), body as (tx: SqliteTransaction) => T),
      true,
    );
    if (enqueued > 0) this.#ringing.ring();
    return value;
  }

  async record(
    writes: readonly { readonly lease: Lease; readonly write: AttemptWrite }[],
  ): Promise<readonly WriteAnswer[]> {
    const answers = await this.#writer.write("recording an attempt", () => {
      const now = this.#now();
      return writes.map(({ lease, write }) => writeOfAttempt(this.#db, this.#kinds, this.#settling, lease, write, now));
    });
    if (writes.some(({ write }) => write.type === "enqueue")) this.#ringing.ring();
    return answers;
  }

  beat(worker: string, beat: Beat): Promise<BeatAnswer> {
    return this.#writer.write("beating", () => {
      const replaced = this.#db.whyLogReplaced();
      if (replaced !== null) throw storeReplaced(this.#db.path, replaced);
      return this.#workers.beat(worker, beat, this.#now());
    });
  }

  note(worker: string, lastWord: string): Promise<void> {
    return this.#writer.write("noting a worker's last word", () => this.#workers.note(worker, lastWord));
  }

  deregister(worker: string): Promise<boolean> {
    return this.#writer.write("deregistering a worker", () => this.#workers.deregister(worker, this.#now()));
  }

  workers(query: WorkerQuery): Promise<readonly WorkerRow[]> {
    return this.#read("listing workers", () => this.#workers.list(query));
  }

  /** The mark is written after the commit: one that is too low is corrected by the next open, and names no epoch that was not issued. */
  async raiseEpoch(): Promise<number> {
    const above = this.#db.file === null ? 0 : (this.#markFile.read()?.epoch ?? 0);
    const epoch = await this.#writer.write("raising the epoch", () => this.#workers.raiseEpoch(this.#now(), above));
    this.#mark(epoch);
    return epoch;
  }

  async noticeRestore(): Promise<string | null> {
    const place = this.#place();
    if (place === null) return null;
    const mark = this.#markFile.read();
    const epoch = await this.#read("reading the epoch", () => this.#workers.epoch());
    if (whyRestored(mark, place, epoch) === null) {
      if (mark?.boot !== place.boot || epoch > mark.epoch) this.#mark(epoch);
      return null;
    }
    // Again, in a transaction: another process may have noticed it in the meantime.
    const found = await this.#writer.write("noting a restore", () =>
      this.#workers.noticeRestore(mark!, place, this.#now()),
    );
    this.#mark(found.epoch);
    return found.why;
  }

  #mark(epoch: number): void {
    const place = this.#place();
    if (place !== null) this.#markFile.write({ ...place, epoch });
  }

  #place(): FilePlace | null {
    const { bootId: boot } = this.#deps;
    return this.#db.file === null || boot === undefined ? null : { boot, inode: this.#db.file.split(":").at(-1)! };
  }

  condemn(request: CondemnRequest): Promise<Condemned | null> {
    return this.#writer.write(`condemning ${request.worker.id}`, () => this.#recovering.condemn(request, this.#now()));
  }

  heldBy(condemned: Condemned, limit: number): Promise<HeldJobs> {
    return this.#read(`reading what ${condemned.worker} holds`, () =>
      this.#recovering.heldBy(condemned, limit, this.#now()),
    );
  }

  overdue(query: OverdueQuery): Promise<readonly HeldJob[]> {
    return this.#read("looking for overdue jobs", () => this.#recovering.overdue(query, this.#now()));
  }

  async takeBack(request: TakeBackRequest): Promise<TakeBackAnswer> {
    const doing = request.of ? `recovering ${request.of.worker}` : "fencing out overdue jobs";
    const answer = await this.#writer.write(doing, () => this.#recovering.takeBack(request, this.#now()));
    if (request.verdicts.length > 0) this.#ringing.ring();
    return answer;
  }

  untilWritable(): Promise<void> {
    return this.#writer.write("checking that the file can be written", () => {});
  }

  losses(): Promise<readonly Loss[]> {
    return this.#read("reading losses of contact", () => openLosses(this.#db));
  }

  resolveLoss(worker: string, resolution: Resolution): Promise<Resolution | null> {
    return this.#writer.write(`resolving the loss of ${worker}`, () => resolveLoss(this.#db, worker, resolution));
  }

  lostJobs(incident: string, limit: number): Promise<readonly LostJob[]> {
    return this.#read(`reading the jobs of loss ${incident}`, () =>
      lostJobs(this.#db, this.#kinds, this.#recovering, incident, limit, this.#now()),
    );
  }

  async judge(incident: string, verdicts: readonly LossVerdict[]): Promise<boolean> {
    const closed = await this.#writer.write(`judging the jobs of loss ${incident}`, () =>
      judgeLoss(this.#db, incident, verdicts, this.#now()),
    );
    if (verdicts.some(({ change }) => change?.to === "queued")) this.#ringing.ring();
    return closed;
  }

  async purge(request: PurgeRequest): Promise<PurgeAnswer> {
    const { clock } = this.#deps;
    const now = this.#now();
    const candidates = await this.#read("looking for old jobs", () => this.#purging.candidates(request, now));
    if (!candidates.any) return { jobs: 0, incidents: 0, more: candidates.more };
    return this.#writer.write("purging", () => {
      const until = clock.mono() + PURGE_MS;
      return this.#purging.delete(candidates, request, now, () => clock.mono() >= until);
    });
  }

  get(id: string): Promise<JobDetails | null> {
    return this.#read(`reading job ${id}`, () => getJob(this.#db, id));
  }

  list(filter: JobFilter, limit: number, after: string | null): Promise<ListPage> {
    return this.#read("listing jobs", () => listJobs(this.#db, filter, limit, after));
  }

  counts(): Promise<readonly KindCounts[]> {
    return this.#read("counting jobs", () => countJobs(this.#db, this.#now()));
  }

  ahead(id: string): Promise<number | null> {
    return this.#read(`counting what is ahead of ${id}`, () => countAhead(this.#db, id));
  }

  suspects(): Promise<readonly WorkerSuspects[]> {
    return this.#read("listing held suspects", () => heldSuspects(this.#db));
  }

  writer(): Promise<LockHolder | null> {
    return this.#read("asking who writes", () => blocker(this.#db));
  }

  async cancel(id: string, actor: string): Promise<OperatorAnswer> {
    const answer = await this.#writer.write(`cancelling ${id}`, () => cancelJob(this.#db, id, actor, this.#now()));
    if (answer.is === "requested") this.#ringing.ring();
    return answer;
  }

  async retry(id: string, actor: string): Promise<OperatorAnswer> {
    const answer = await this.#writer.write(`retrying ${id}`, () => retryJob(this.#db, id, actor, this.#now()));
    if (answer.is === "applied") this.#ringing.ring();
    return answer;
  }

  async setPaused(kind: string, paused: boolean): Promise<boolean> {
    const known = await this.#writer.write(`pausing or resuming ${kind}`, () => setPaused(this.#db, kind, paused));
    if (!paused) this.#ringing.ring();
    return known;
  }

  incidents(limit: number, after: string | null): Promise<readonly IncidentSummary[]> {
    return this.#read("listing incidents", () => listIncidents(this.#db, limit, after));
  }

  incident(id: string): Promise<Incident | null> {
    return this.#read(`reading incident ${id}`, () => getIncident(this.#db, id));
  }

  latestRecovery(): Promise<readonly Incident[]> {
    return this.#read("reading the latest recovery", () => latestRecovery(this.#db));
  }

  /** Gives the file an identity if it has none. */
  async identify(): Promise<void> {
    if (storeIdentity(this.#db) !== null) return;
    await this.#writer.write("naming the store", () => ensureIdentity(this.#db, this.#deps.newId));
  }

  latestOpening(): Promise<Opening | null> {
    return this.#read("reading the latest opening", () => latestOpening(this.#db));
  }

  noteOpening(opening: Opening): Promise<void> {
    return this.#writer.write("keeping what an open found", () => noteOpening(this.#db, opening));
  }

  upkeep(): Promise<Upkeep> {
    return this.#read("looking after the write-ahead log", () => tendWal(this.#db));
  }

  health(): Promise<StoreHealth> {
    return this.#read("asking for the store's health", () => storeHealth(this.#db, this.#writer));
  }

  /** In a process of its own, so that this one's loop goes on. A database in memory has only this one. */
  async integrity(): Promise<readonly string[]> {
    if (this.#db.path !== ":memory:")
      return (await checkFile(this.#db.path, "full", Number.POSITIVE_INFINITY)).findings;
    return this.#read("checking the integrity", () => checkOpen(this.#db, "full"));
  }

  /** Indexes are made anew from their tables. What is worse needs the file to itself: `outlive check --repair` (repair.ts). */
  async repair(): Promise<readonly string[]> {
    await this.#read("making the indexes anew", () => this.#db.exec("REINDEX"));
    return this.integrity();
  }

  inconsistencies(): Promise<readonly Inconsistency[]> {
    return this.#read("looking for inconsistencies", () =>
      findInconsistencies(this.#db, this.#db.path === ":memory:" ? [] : findStrayLocks(this.#db), "full"),
    );
  }

  async backup(file: string, options: BackupOptions = {}): Promise<Backup> {
    if (this.#closed) throw closed();
    if (this.#db.path !== ":memory:") return backupFile(this.#db.path, file, options);
    throw new OutliveError(
      ErrorCode.wrongState,
      "A database in memory dies with its process and can't be backed up.",
      "Use a file: sqlite:./jobs.db.",
    );
  }

  onBell(listener: () => void): () => void {
    return this.#ringing.onBell(listener);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    await this.#writer.close();
    this.#closed = true;
    this.#ringing.close();
    this.#deps.bell?.close();
    this.#deps.onClose?.();
    this.#db.close();
  }

  #now(): number {
    return this.#deps.clock.now();
  }

  /** A read is refused as busy only while another process opens the file first or closes it last: for a moment. */
  async #read<T>(doing: string, read: () => T): Promise<T> {
    if (this.#closed) throw closed();
    const replaced = this.#db.whyReplaced();
    if (replaced !== null) throw storeReplaced(this.#db.path, replaced);
    try {
      return await whenFree(this.#deps.clock, this.#deps.random, read);
    } catch (thrown) {
      throw inOurWords(doing, thrown);
    }
  }
}
