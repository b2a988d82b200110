// The oracle of one history: after every event it reads what was written, holds it against the laws, and remembers it.
import type { Disk } from "../world/disk.ts";
import type { SimProcess } from "../world/process.ts";
import { kindFacts } from "../workloads/index.ts";
import type { Outputs, RowIn } from "../workloads/batches.ts";
import type { RunOf, Word } from "../workloads/workload.ts";
import { TRANSFER } from "../workloads/money.ts";
import { ACCOUNTS, BALANCE } from "../workloads/tables.ts";
import { AnswerLaw } from "./answer-law.ts";
import { AuthorityLaw } from "./authority-law.ts";
import { BatchesLaw, convicts } from "./batches-law.ts";
import { BlameLaw } from "./blame-law.ts";
import { DeadlineLaw } from "./deadline-law.ts";
import { DetectionLaw } from "./detection-law.ts";
import { PickupLaw } from "./pickup-law.ts";
import { DraftMemory } from "./draft-memory.ts";
import { MaintenanceLaw } from "./maintenance-law.ts";
import {
  changesOfJobs,
  historyOf,
  isTerminal,
  ledgerOf,
  Model,
  type Moment,
  OUTCOME,
  STATE,
  stepsOf,
} from "./model.ts";
import { EndLaw } from "./end-law.ts";
import { FamilyLaw } from "./family-law.ts";
import { FollowLaw } from "./follow-law.ts";
import { IsolationLaw } from "./isolation-law.ts";
import { KeysLaw } from "./keys-law.ts";
import { LossLaw } from "./loss-law.ts";
import { MoneyLaw } from "./money-law.ts";
import { RerunLaw } from "./rerun-law.ts";
import { RestoreLaw } from "./restore-law.ts";
import { type Asked, RequestLaw } from "./request-law.ts";
import { SilenceLaw } from "./silence-law.ts";
import { StateLaw } from "./state-law.ts";
import { StepMemory } from "./step-memory.ts";
import type { Tally } from "./tally.ts";
import { type HistoryRow, type JobRow, Watch } from "./watch.ts";
import type { Witness } from "./witness.ts";
import { WaitingLaw } from "./waiting-law.ts";
import { WorkerLaw } from "./worker-law.ts";
import { WriteLaw } from "./write-law.ts";

export interface OracleDeps {
  readonly disk: Disk;
  readonly witness: Witness;
  readonly tally: Tally;
  readonly concurrency: number;
  readonly ahead: number;
  /** Of how many jobs one may kill its workers, if nothing else goes wrong; null: the figures of isolation are not laws here. */
  readonly culpritAmong: number | null;
  readonly process: (pid: number) => SimProcess | null;
  readonly processes: () => readonly SimProcess[];
  /** Whether the liveness lock of this worker is held. */
  readonly holds: (worker: string) => boolean;
  /** Whether a living process has it, also where the others can't see that. */
  readonly isAlive: (worker: string) => boolean;
  /** Whether the kernel has released it, which proves that its process is dead. */
  readonly isFree: (worker: string) => boolean;
  /** Hears that a job was claimed which this process had before. */
  readonly reclaimed: (from: SimProcess) => void;
}

export class Oracle {
  readonly model: Model;
  readonly requests: RequestLaw;
  readonly batches: BatchesLaw;
  readonly drafts = new DraftMemory();
  readonly #deps: OracleDeps;
  readonly #watch: Watch;
  readonly #states: StateLaw;
  readonly #authority: AuthorityLaw;
  readonly #deadlines: DeadlineLaw;
  readonly #answers: AnswerLaw;
  readonly #ends = new EndLaw(kindFacts);
  readonly #follows = new FollowLaw();
  readonly #families: FamilyLaw;
  readonly #waiting: WaitingLaw;
  readonly #keys: KeysLaw;
  readonly reruns: RerunLaw;
  readonly #money: MoneyLaw;
  readonly #blame: BlameLaw;
  readonly #isolation: IsolationLaw | null;
  readonly #losses: LossLaw;
  readonly #workers: WorkerLaw;
  readonly #writes: WriteLaw;
  readonly #maintenances: MaintenanceLaw;
  readonly #silence: SilenceLaw;
  readonly #detection: DetectionLaw;
  readonly #pickups: PickupLaw;
  readonly #restores: RestoreLaw;
  readonly #steps = new StepMemory();
  readonly #holds: (worker: string) => boolean;
  #broken: Error | null = null;
  #calmAt: number | null = null;

  /** The tables and triggers are there already. */
  constructor(deps: OracleDeps) {
    this.#deps = deps;
    this.model = new Model(deps.process);
    this.#families = new FamilyLaw(this.model);
    this.batches = new BatchesLaw(this.model, deps.disk.db);
    this.requests = new RequestLaw(this.model, (job) => this.#families.includes(job) || this.batches.isAborted(job));
    this.#waiting = new WaitingLaw(this.model);
    this.#keys = new KeysLaw(this.model);
    this.reruns = new RerunLaw(this.model);
    this.#watch = new Watch(deps.disk);
    this.#states = new StateLaw((kind) => ({ ...kindFacts(kind).limits, rows: kindFacts(kind).rows ?? false }));
    this.#restores = new RestoreLaw(deps.process, () => deps.disk.misplaced);
    // What a worker of a restored row holds, it does not hold in this store.
    const holds = (worker: string): boolean => deps.holds(worker) && !this.#restores.isFormer(worker);
    const isAlive = (worker: string): boolean => deps.isAlive(worker) && !this.#restores.isFormer(worker);
    this.#holds = holds;
    this.#deadlines = new DeadlineLaw(this.model, kindFacts);
    this.#authority = new AuthorityLaw(this.model, this.#deadlines, holds, (kind) => kindFacts(kind).graceMs);
    this.#workers = new WorkerLaw(this.model, holds);
    this.#answers = new AnswerLaw(this.model, (worker) => this.#restores.isFormer(worker));
    this.#money = new MoneyLaw(deps.disk.db, TRANSFER, ACCOUNTS * BALANCE);
    this.#maintenances = new MaintenanceLaw(this.model, deps.processes, kindFacts);
    this.#silence = new SilenceLaw(this.model);
    this.#writes = new WriteLaw(this.model, kindFacts);
    this.#losses = new LossLaw(this.model, isAlive);
    this.#detection = new DetectionLaw(this.model, deps.isFree);
    this.#pickups = new PickupLaw(this.model, deps.processes);
    this.#blame = new BlameLaw(this.model, kindFacts, deps.concurrency, deps.ahead);
    this.#isolation = deps.culpritAmong === null ? null : new IsolationLaw(deps.culpritAmong, kindFacts, deps.tally);
  }

  /** The event of `process` at `now` (virtual; `wall`: the host's clock) has come to rest. Throws a Violation. */
  look(process: SimProcess | null, now: number, wall: number): void {
    if (this.#broken) throw this.#broken;
    this.#authority.onTime(wall);
    this.#restores.onTime(now, this.#calmAt);
    this.#maintenances.onTime(now, wall);
    this.#detection.onTime(now);
    this.#pickups.onTime(now);
    this.#waiting.onTime(now, wall, this.#calmAt);
    this.#keys.onTime(now, wall, this.#calmAt);
    this.reruns.onTime(now, wall);
    if (this.#calmAt !== null) this.requests.onCalm(now, this.#calmAt);
    const answers = this.#deps.witness.take();
    const seen = this.#watch.read();
    if (seen.length === 0 && answers.length === 0) return;
    const moment: Moment = { now, wall, process, seen, answers };
    const changes = changesOfJobs(moment);
    const history = historyOf(moment);
    const { tally } = this.#deps;
    // Incidents are needed to judge the crashes of the same transaction.
    const registered = seen.flatMap((one) => (one.subject === "worker" && one.was === null && one.is ? [one.is] : []));
    for (const worker of registered) this.#restores.onRegistered(worker);
    for (const one of seen) {
      if (one.subject !== "incident") continue;
      this.#losses.onIncident(one.was, one.is, registered, now);
      this.model.learn(one, now);
    }
    for (const one of seen) {
      if (one.subject === "job") {
        const { was, is } = one;
        this.#states.onChange(was, is);
        if (!is) continue;
        this.requests.onChange(was, is);
        this.#families.onChange(was, is);
        this.#waiting.onChange(was, is, moment);
        if (was?.state === STATE.queued && is.state === STATE.running) {
          this.#restores.onClaim(is);
          this.#authority.onClaim(is, moment);
          const former = this.model.workers.get(was.worker ?? -1)?.process;
          if (former && former !== process) this.#deps.reclaimed(former);
        }
        if (was?.state === STATE.running && is.state !== STATE.running) {
          if (this.#authority.onEnd(was, is, moment, history)) tally.takeovers++;
          this.#ends.onEnd(was, is, moment);
          const { limits, poison } = kindFacts(is.kind);
          if (!poison && is.blamed === limits.crashes && was.blamed < is.blamed) tally.accused++;
          // Counted before the laws: what one of them stops the history at has happened all the same.
          if (is.state === STATE.succeeded) tally.succeeded++;
          if (is.state === STATE.quarantined) tally.quarantined++;
          if (is.state === STATE.quarantined && !poison) tally.innocents++;
          if (is.outcome === OUTCOME.crashed && !convicts(was, is)) {
            this.#blame.onCrash(was, is, history, wall - 1);
            this.#isolation?.onCrash(is);
            this.#losses.onCrash(is, history);
          }
          if (is.outcome === OUTCOME.lost) this.#losses.onLost(was, is, history);
        }
      }
      if (one.subject === "job" && one.is) {
        this.#deadlines.onChange(one.was, one.is, moment);
      }
      if (one.subject === "job" && one.was && one.is) this.#judged(one.was, one.is, history, wall);
      if (one.subject === "signal") this.#waiting.onSignal(one.was, one.is);
      if (one.subject === "history") this.#states.onHistory(one.was);
      if (one.subject === "worker" && one.was && one.is) {
        const known = this.model.workers.get(one.is.seq);
        this.#workers.onChange(one.was, one.is, known, now);
        this.#silence.onChange(one.was, one.is, known, moment);
      }
      this.model.learn(one, now);
    }
    this.#states.onMoment(changes, history, this.model);
    tally.staleWrites += this.#answers.onMoment(moment, changes, history, stepsOf(moment));
    this.#restores.onMoment(moment);
    this.#writes.onMoment(moment);
    this.drafts.onMoment(moment);
    this.#money.onMoment(changes, ledgerOf(moment));
    this.#follows.onMoment(changes);
    this.#waiting.onMoment(moment);
    this.#keys.onMoment(moment);
    this.reruns.onMoment(moment);
    this.#blame.onMoment(moment);
    this.#families.onMoment(moment);
    this.batches.onMoment(moment);
    this.requests.onMoment(moment, changes);
  }

  /** A loss of contact was resolved, and the job paid for it or not. A step that resets all losses is another matter. */
  #judged(was: JobRow, is: JobRow, history: readonly HistoryRow[], wall: number): void {
    const ended = was.state === STATE.running && is.state !== STATE.running;
    const reset = was.state === STATE.running && is.state === STATE.running && is.crashes + is.losses === 0;
    if (
      ended ||
      convicts(was, is) ||
      isTerminal(was.state) ||
      is.losses !== was.losses - 1 ||
      (reset && !history.some(({ job }) => job === is.seq))
    )
      return;
    this.#losses.onJudged(was, is, history);
    if (is.crashes > was.crashes) this.#blame.onCrash(was, is, history, wall - 1);
    const { poison, limits } = kindFacts(is.kind);
    if (!poison && is.blamed === limits.crashes && was.blamed < is.blamed) this.#deps.tally.accused++;
    if (is.state !== STATE.quarantined) return;
    this.#deps.tally.quarantined++;
    if (!poison) this.#deps.tally.innocents++;
  }

  /** From now on nothing is lost, slow, stopped or killed from outside. */
  calm(now: number): void {
    this.#calmAt = now;
  }

  /** A producer's enqueue of this draft resolved with this id. */
  acknowledged(draft: Asked, id: string, now: number): void {
    this.requests.acknowledge(draft, id, now);
  }

  /** All processes are dead, and the disk has gone back to its last sync. */
  powerLost(): void {
    const { disk, tally } = this.#deps;
    this.#goBack(false);
    this.#answers.powerLost(disk.syncedAt);
    this.#keep(() => {
      tally.lostWithPower += this.requests.wentBack(disk.syncedAt);
    });
  }

  /** A copy of the store from `takenAt` was put in its place while processes live. */
  restored(takenAt: number, now: number): void {
    const { tally } = this.#deps;
    this.#goBack(true);
    this.#answers.restored(takenAt);
    this.#restores.restored(now);
    this.#keep(() => {
      tally.takenBack += this.requests.wentBack(takenAt);
    });
  }

  /** What is in the rows is older than what was seen last. */
  #goBack(restored: boolean): void {
    this.#deps.witness.take();
    this.model.reload(this.#watch, restored);
    const kept = this.#watch.all("step").map(({ job, name }) => `${this.model.jobs.get(job)?.id}/${name}`);
    this.#steps.wentBack(new Set(kept));
    this.#waiting.wentBack(this.#watch.all("signal"));
    this.#keys.wentBack(this.#watch.all("keyed"), this.#watch.all("key"), this.#watch.all("keyWake"));
    this.#families.wentBack();
    this.batches.wentBack(this.#watch);
    this.reruns.wentBack();
    this.drafts.wentBack();
    this.#losses.wentBack();
    this.#deadlines.wentBack();
    this.#detection.wentBack();
    this.#pickups.wentBack();
  }

  /** The engine in `process` stopped trusting what it holds: a process in good health never has to. */
  leaseLost(process: SimProcess, at: number): void {
    if (this.#restores.hasToStop(process)) return;
    this.#keep(() => this.#workers.onLeaseLost(process, at));
  }

  /** The maintenance of `process` ends it, because a job blocks its loop for too long. */
  maintenanceKills(process: SimProcess, now: number): void {
    if (this.#restores.hasToStop(process)) return;
    this.#keep(() => this.#deadlines.onMaintenanceKills(process, now));
  }

  /** A handler got this result out of a step. One that began before a restore speaks of a store that is not there any more. */
  stepCame({ id, fence }: RunOf, step: string, result: string): void {
    if (this.#restores.isBefore(fence.epoch)) return;
    this.#keep(() => this.#steps.came(id, step, result));
  }

  /** What the handler of an attempt did. */
  handlerTold(run: RunOf, word: Word): void {
    if (word === "began") this.#keep(() => this.#keys.began(run));
    else this.#ends.told(run, word);
  }

  /** The handler of a row of a batch began, or ended. */
  rowTold(run: RowIn, line: number, how: "began" | "succeeded" | "failed"): void {
    if (this.#restores.isBefore(run.fence.epoch)) return;
    this.#keep(() => (how === "began" ? this.batches.began(run, line) : this.batches.ended(run, line, how)));
  }

  /** A `done` of a batch got these files. */
  given({ fence }: Pick<RowIn, "fence">, outputs: Outputs): void {
    if (!this.#restores.isBefore(fence.epoch)) this.batches.given(outputs);
  }

  /** Inside the simulated program a violation would be taken for its own error: it is kept for the next look. */
  #keep(law: () => void): void {
    try {
      law();
    } catch (thrown) {
      this.#broken ??= thrown as Error;
    }
  }

  /** The jobs that a person would look at: all of them, and those that run more than others. */
  inSight(): readonly string[] {
    // Who cancels what follows an end, or the beginning of a round, takes that from its batch: no promise is left of it.
    const rows = [...this.model.jobsById.values()].filter(({ kind }) => !/:(done|round)$/.test(kind));
    const running = rows.filter(({ state }) => state === STATE.running);
    return [...rows, ...running, ...running, ...running].map(({ id }) => id);
  }

  /** Whether no worker's row is live but those whose locks are held. */
  get allRecovered(): boolean {
    for (const { row } of this.model.workers.values())
      if (row.state === "recovering" || (row.state === "live" && !this.#holds(row.id))) return false;
    return true;
  }

  /** Whether every job that is in the store has ended. */
  get drained(): boolean {
    for (const job of this.model.jobs.values())
      if (job.state === STATE.queued || job.state === STATE.running) return false;
    return this.batches.drained;
  }
}
