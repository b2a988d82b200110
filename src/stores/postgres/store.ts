// The store port on PostgreSQL, assembled: every method is one statement, one transaction or one read. The statements are in the
// files beside it, one role each.
import type { Clock } from "../../core/clock.ts";
import type { CommitControl } from "../../core/commit.ts";
import type { Incident, IncidentSummary } from "../../core/incident.ts";
import type { Enqueued, JobDetails, JobDraft, KindSettings } from "../../core/job.ts";
import type { Lease } from "../../core/lease.ts";
import type { Loss, LossVerdict, LostJob, Resolution } from "../../core/losses.ts";
import type { WorkerRecord, WorkerRow } from "../../core/liveness.ts";
import type {
  AttemptWrite,
  Beat,
  BeatAnswer,
  Finding,
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
  WorkerQuery,
  WorkerSuspects,
  WriteAnswer,
} from "../../core/store.ts";
import { advice } from "./advice.ts";
import { type AttemptWriteDeps, recordWrites } from "./attempt-writes.ts";
import { Bell } from "./bell.ts";
import { type CommitDeps, commitJob, transact } from "./commit.ts";
import { closed } from "../closed.ts";
import { Ringing } from "../ringing.ts";
import type { Connection } from "./connection.ts";
import { Enqueuing } from "./enqueue.ts";
import { inOurWords, isOfOneRow, sqlState } from "./errors.ts";
import { blocker, findings, serverFacts } from "./health.ts";
import { getIncident, latestRecovery, listIncidents } from "./incidents.ts";
import { countAhead, countJobs, getJob, heldSuspects, listJobs } from "./inspect.ts";
import { Kinds } from "./kinds.ts";
import { cancelJob, retryJob, setPaused } from "./operate.ts";
import { judgeLoss, lostJobs, openLosses, resolveLoss } from "./losses.ts";
import { Purging } from "./purge.ts";
import { Recovering } from "./recover.ts";
import { noticeRestore } from "./restore-mark.ts";
import { bellChannel } from "./schema.ts";
import { Settling } from "./settle.ts";
import type { PostgresTransaction } from "./transaction.ts";
import { Turns } from "./turn.ts";
import { Workers } from "./workers.ts";

export interface PostgresStoreDeps {
  readonly connection: Connection;
  readonly clock: Clock;
  readonly newId: () => string;
  /** How workers are woken. Default: a bell that hears nobody else. */
  readonly bell?: Bell;
  /** From how many successes on a worker's turn is two statements at the same time instead of one. Default 16. */
  readonly turnInTwoFrom?: number;
}

const TURN_IN_TWO_FROM = 16;

const UNIQUE_VIOLATION = "23505";
const LOCK_NOT_AVAILABLE = "55P03";

export class PostgresStore implements Store<PostgresTransaction> {
  readonly name = "postgres";
  readonly #connection: Connection;
  readonly #kinds = new Kinds();
  readonly #workers = new Workers();
  readonly #settling = new Settling(this.#workers);
  readonly #recovering = new Recovering(this.#kinds);
  readonly #purging = new Purging();
  readonly #enqueuing: Enqueuing;
  readonly #turns: Turns;
  readonly #bell: Bell;
  readonly #commit: CommitDeps;
  readonly #attempts: AttemptWriteDeps;
  readonly #ringing: Ringing;
  #closed = false;

  constructor({ connection, clock, newId, bell, turnInTwoFrom: inTwoFrom = TURN_IN_TWO_FROM }: PostgresStoreDeps) {
    this.#connection = connection;
    const shared = { connection, kinds: this.#kinds, workers: this.#workers, settling: this.#settling };
    this.#enqueuing = new Enqueuing(connection, this.#kinds, clock);
    this.#turns = new Turns({ ...shared, inTwoFrom });
    this.#attempts = shared;
    this.#bell = bell ?? new Bell(connection, clock);
    this.#ringing = new Ringing(this.#bell);
    this.#commit = { ...shared, clock, newId };
  }

  declare(kinds: readonly KindSettings[]): Promise<void> {
    return this.#do("declaring kinds", () => this.#kinds.declare(this.#connection, kinds));
  }

  async enqueue(drafts: readonly JobDraft[]): Promise<readonly Enqueued[]> {
    const enqueued = await this.#do("enqueueing", () => this.#enqueuing.enqueue(drafts));
    this.#ringing.ring();
    return enqueued;
  }

  register(worker: WorkerRecord): Promise<{ readonly epoch: number; readonly now: number }> {
    return this.#do("registering a worker", async () => {
      await noticeRestore(this.#connection);
      return this.#connection.transaction((tx) => this.#workers.register(tx, worker));
    });
  }

  async settleAndClaim(worker: string, settlements: readonly Settlement[], room: Room): Promise<SettleAndClaim> {
    const answer = await this.#do("settling and claiming", () => this.#turns.settleAndClaim(worker, settlements, room));
    // What went back into the queue may be somebody else's to run.
    if (settlements.some(({ change }) => change.to === "queued")) this.#ringing.ring();
    return answer;
  }

  async commit<T>(
    settlement: Settlement,
    body: TransactionBody<PostgresTransaction, T>,
    encode: (value: T) => string | null,
    control?: CommitControl,
  ): Promise<{ answer: WriteAnswer; value: T | undefined }> {
    const doing = `committing job ${settlement.lease.jobId}`;
    const { enqueued, ...done } = await this.#do(doing, () =>
      commitJob(this.#commit, settlement, body, encode, control),
    );
    if (enqueued > 0) this.#ringing.ring();
    return done;
  }

  async transact<T>(body: TransactionBody<PostgresTransaction, T>): Promise<T> {
    const { value, enqueued } = await this.#do("a transaction of yours", () => transact(this.#commit, body));
    if (enqueued > 0) this.#ringing.ring();
    return value;
  }

  async record(
    writes: readonly { readonly lease: Lease; readonly write: AttemptWrite }[],
  ): Promise<readonly WriteAnswer[]> {
    const answers = await this.#do("recording an attempt", () =>
      recordWrites(this.#connection, this.#attempts, writes),
    );
    if (writes.some(({ write }) => write.type === "enqueue")) this.#ringing.ring();
    return answers;
  }

  beat(worker: string, beat: Beat): Promise<BeatAnswer> {
    return this.#do("beating", () => this.#workers.beat(this.#connection, worker, beat));
  }

  note(worker: string, lastWord: string): Promise<void> {
    return this.#do("noting a worker's last word", () =>
      this.#connection.transaction((tx) => this.#workers.note(tx, worker, lastWord)),
    );
  }

  deregister(worker: string): Promise<boolean> {
    return this.#do("deregistering a worker", () =>
      this.#connection.transaction((tx) => this.#workers.deregister(tx, worker)),
    );
  }

  workers(query: WorkerQuery): Promise<readonly WorkerRow[]> {
    return this.#do("listing workers", () => this.#workers.list(this.#connection, query));
  }

  raiseEpoch(): Promise<number> {
    return this.#do("raising the epoch", () => this.#workers.raiseEpoch(this.#connection));
  }

  noticeRestore(): Promise<string | null> {
    return this.#do("looking for signs of a restore", async () =>
      (await noticeRestore(this.#connection)) ? "its tables were restored from a dump" : null,
    );
  }

  condemn(request: CondemnRequest): Promise<Condemned | "locked" | null> {
    return this.#do(`condemning ${request.worker.id}`, () =>
      this.#connection
        .maintain((tx) => this.#recovering.condemn(tx, request), "recovery")
        .catch((thrown: unknown) => {
          // A claim or a recovery that stands still holds the worker's row.
          if (sqlState(thrown) !== LOCK_NOT_AVAILABLE) throw thrown;
          return "locked" as const;
        }),
    );
  }

  heldBy(condemned: Condemned, limit: number): Promise<HeldJobs> {
    return this.#do(`reading what ${condemned.worker} holds`, () =>
      this.#recovering.heldBy(this.#connection, condemned, limit),
    );
  }

  overdue(query: OverdueQuery): Promise<readonly HeldJob[]> {
    return this.#do("looking for overdue jobs", () => this.#recovering.overdue(this.#connection, query));
  }

  async takeBack(request: TakeBackRequest): Promise<TakeBackAnswer> {
    const bell = bellChannel(this.#connection.schema);
    const kind = request.of ? "recovery" : "upkeep";
    const transaction = (each: boolean): Promise<TakeBackAnswer> =>
      this.#connection.maintain((tx) => this.#recovering.takeBack(tx, request, bell, each), kind);
    const doing = request.of ? `recovering ${request.of.worker}` : "fencing out overdue jobs";
    const answer = await this.#do(doing, () =>
      // If the row of one job was refused, each job can fail for itself in a second try.
      transaction(false).catch((thrown: unknown) => {
        if (isOfOneRow(thrown)) return transaction(true);
        if (sqlState(thrown) !== LOCK_NOT_AVAILABLE) throw thrown;
        // Another recovery of the same worker stands still.
        return { taken: request.verdicts.map(() => "locked" as const), locked: Math.max(1, request.verdicts.length) };
      }),
    );
    // The other processes hear of it by the commit.
    if (request.verdicts.length > 0) this.#ringing.ringHere();
    return answer;
  }

  losses(): Promise<readonly Loss[]> {
    return this.#do("reading losses of contact", () => openLosses(this.#connection));
  }

  resolveLoss(worker: string, resolution: Resolution): Promise<Resolution | null> {
    return this.#do(`resolving the loss of ${worker}`, () => resolveLoss(this.#connection, worker, resolution));
  }

  lostJobs(incident: string, limit: number): Promise<readonly LostJob[]> {
    return this.#do(`reading the jobs of loss ${incident}`, () =>
      lostJobs(this.#connection, this.#kinds, incident, limit),
    );
  }

  async judge(incident: string, verdicts: readonly LossVerdict[]): Promise<boolean> {
    const closed = await this.#do(`judging the jobs of loss ${incident}`, () =>
      this.#connection.maintain((tx) => judgeLoss(tx, incident, verdicts)),
    );
    if (verdicts.some(({ change }) => change?.to === "queued")) this.#ringing.ring();
    return closed;
  }

  purge(request: PurgeRequest): Promise<PurgeAnswer> {
    return this.#do("purging", () => this.#purging.purge(this.#connection, request));
  }

  get(id: string): Promise<JobDetails | null> {
    return this.#do(`reading job ${id}`, () => getJob(this.#connection, id));
  }

  list(filter: JobFilter, limit: number, after: string | null): Promise<ListPage> {
    return this.#do("listing jobs", () => listJobs(this.#connection, filter, limit, after));
  }

  counts(): Promise<readonly KindCounts[]> {
    return this.#do("counting jobs", () => countJobs(this.#connection));
  }

  ahead(id: string): Promise<number | null> {
    return this.#do(`counting what is ahead of ${id}`, () => countAhead(this.#connection, id));
  }

  suspects(): Promise<readonly WorkerSuspects[]> {
    return this.#do("listing held suspects", () => heldSuspects(this.#connection));
  }

  writer(): Promise<LockHolder | null> {
    return this.#do("asking who blocks us", () => blocker(this.#connection));
  }

  async cancel(id: string, actor: string): Promise<OperatorAnswer> {
    const answer = await this.#do(`cancelling ${id}`, () =>
      this.#connection.transaction((tx) => cancelJob(tx, id, actor)),
    );
    if (answer.is === "requested") this.#ringing.ring();
    return answer;
  }

  async retry(id: string, actor: string): Promise<OperatorAnswer> {
    const retried = (): Promise<OperatorAnswer> => this.#connection.transaction((tx) => retryJob(tx, id, actor));
    const answer = await this.#do(`retrying ${id}`, () =>
      retried().catch((thrown: unknown) => {
        if (sqlState(thrown) !== UNIQUE_VIOLATION) throw thrown;
        // Somebody took its dedupe key between our look and our write: the second look finds the holder.
        return retried();
      }),
    );
    if (answer.is === "applied") this.#ringing.ring();
    return answer;
  }

  async setPaused(kind: string, paused: boolean): Promise<boolean> {
    const known = await this.#do(`pausing or resuming ${kind}`, () => setPaused(this.#connection, kind, paused));
    if (!paused) this.#ringing.ring();
    return known;
  }

  incidents(limit: number, after: string | null): Promise<readonly IncidentSummary[]> {
    return this.#do("listing incidents", () => listIncidents(this.#connection, limit, after));
  }

  incident(id: string): Promise<Incident | null> {
    return this.#do(`reading incident ${id}`, () => getIncident(this.#connection, id));
  }

  latestRecovery(): Promise<readonly Incident[]> {
    return this.#do("reading the latest recovery", () => latestRecovery(this.#connection));
  }

  advice(): Promise<readonly Finding[]> {
    return this.#do("asking what an operator should know", async () => {
      const { pooled } = await this.#connection.greet();
      return advice(this.#connection, pooled);
    });
  }

  health(): Promise<StoreHealth> {
    return this.#do("asking for the store's health", async () => {
      const facts = await serverFacts(this.#connection);
      const { groupCount, operationCount } = this.#enqueuing;
      const groups = { groupCommits: groupCount, groupedWrites: operationCount };
      // Settings that make the server forget are for `outlive check`; a replica can't be worked on at all.
      return { ok: !facts.replica, detail: { schema: this.#connection.schema, ...facts, ...groups } };
    });
  }

  integrity(): Promise<readonly string[]> {
    return this.#do("checking the integrity", () => findings(this.#connection));
  }

  /** Nothing is mended here: what is damaged on a server is for its backups, and what contradicts itself is for people. */
  repair(): Promise<readonly string[]> {
    return this.integrity();
  }

  onBell(listener: () => void): () => void {
    return this.#ringing.onBell(listener);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#ringing.close();
    this.#bell.close();
    await this.#connection.close();
  }

  async #do<T>(doing: string, work: () => Promise<T>): Promise<T> {
    if (this.#closed) throw closed();
    try {
      return await work();
    } catch (thrown) {
      throw inOurWords(doing, thrown);
    }
  }
}
