// Histories on the atomic store (`--store atomic`): the real engine, on a server that fails over now and then and loses its latest scripts.
// The oracle of the other histories reads SQL. What is held here are the laws that a loss could break, by the answers of the port alone.
import { isTerminal, type JobDraft } from "../../src/job/job.ts";
import type { Lease } from "../../src/job/lease.ts";
import { pause } from "../../src/job/time.ts";
import type { Store } from "../../src/stores/port.ts";
import { drawDrafts } from "./actors/drafts.ts";
import { Outbox, signal } from "./actors/signaller.ts";
import { PlanBook, submitAll } from "./actors/submitter.ts";
import { AtomicBatchesLaw } from "./oracle/atomic-batches-law.ts";
import { AtomicKeysLaw } from "./oracle/atomic-keys-law.ts";
import { AtomicRerunLaw } from "./oracle/atomic-rerun-law.ts";
import { AtomicWaitingLaw } from "./oracle/atomic-waiting-law.ts";
import { newTally, type Tally } from "./oracle/tally.ts";
import { demand } from "./oracle/violation.ts";
import { type Answer, Witness } from "./oracle/witness.ts";
import { simulateSchedules } from "./schedules/world.ts";
import { AtomicServer } from "./stores/atomic-server.ts";
import { atomicStore } from "./stores/atomic-store.ts";
import { Data } from "./stores/records.ts";
import { BATCHES, drawPlans, type Plan, SimBlobs } from "./workloads/batches.ts";
import { workloadsNamed } from "./workloads/index.ts";
import { signalsFor } from "./workloads/waiting.ts";
import { type Contracts, contractsFor, type HandlerTold, type Workload } from "./workloads/workload.ts";
import { Conditions } from "./world/conditions.ts";
import { type EngineWorld, openEngine } from "./world/engine-process.ts";
import { Faults } from "./world/faults.ts";
import { Kernel } from "./world/kernel.ts";
import { SimProcess } from "./world/process.ts";
import { drawProfile, type Profile } from "./world/profile.ts";
import { SeededRandom } from "./world/random.ts";
import { Scheduler } from "./world/scheduler.ts";
import { Story } from "./world/story.ts";
import type { Thread } from "./world/thread.ts";
import { WakeupHub } from "./world/wakeup-hub.ts";
import { wire } from "./world/wire.ts";

export interface AtomicCampaign {
  readonly seeds: number;
  readonly violations: number;
  readonly failovers: number;
  readonly lostScripts: number;
  readonly takeovers: number;
  readonly staleWrites: number;
  readonly deaths: number;
  /** No law: an innocent whose worker dies again and again, or is replaced by a failover, can't be distinguished from a poison. */
  readonly innocentsQuarantined: number;
  /** What was broken, and by which seed. */
  readonly broken: readonly string[];
}

/** A history of schedules has no workers that run jobs: it is another world (schedules/world.ts), and a slow one. */
const SCHEDULES_EVERY = 8;
const SCHEDULE_DAYS = 10;

export async function runAtomic(from: number, seeds: number): Promise<AtomicCampaign> {
  const counts = { failovers: 0, lostScripts: 0, takeovers: 0, staleWrites: 0, deaths: 0, innocentsQuarantined: 0 };
  const sum = { seeds, violations: 0, ...counts };
  const broken: string[] = [];
  for (let seed = from; seed < from + seeds; seed++) {
    // With batches in a history of its own: it is another one.
    for (const what of ["jobs", "batches"] as const) {
      const { violation, failovers, lostScripts, tally, story } = await simulateAtomic(seed, AtomicServer, what);
      sum.failovers += failovers;
      sum.lostScripts += lostScripts;
      sum.takeovers += tally.takeovers;
      sum.staleWrites += tally.staleWrites;
      sum.deaths += tally.deaths;
      sum.innocentsQuarantined += tally.innocents;
      if (violation === null) continue;
      sum.violations++;
      broken.push(`seed ${seed}, ${what}: ${violation}\n${story.join("\n")}`);
    }
    if (seed % SCHEDULES_EVERY !== 0) continue;
    const { violation } = await simulateSchedules(seed, SCHEDULE_DAYS, undefined, "atomic");
    if (violation === null) continue;
    sum.violations++;
    broken.push(`seed ${seed}, schedules: ${violation}`);
  }
  return { ...sum, broken };
}

export interface AtomicHistory {
  readonly violation: string | null;
  readonly failovers: number;
  readonly lostScripts: number;
  readonly tally: Tally;
  readonly digest: string;
  readonly story: readonly string[];
}

/** `Server`: one with a bug on purpose, to see whether the laws find it. */
export async function simulateAtomic(
  seed: number,
  Server = AtomicServer,
  what: "jobs" | "batches" = "jobs",
): Promise<AtomicHistory> {
  const world = new AtomicWorld(seed, Server, what === "batches");
  let violation: string | null = null;
  try {
    await world.unfold();
  } catch (thrown) {
    violation = thrown instanceof Error ? String(thrown.stack) : String(thrown);
    world.story.tell("LAWS", violation);
  }
  world.end();
  const { failovers, lostScripts, tally, story } = world;
  return { violation, failovers, lostScripts, tally, digest: story.digest(), story: story.last() };
}

const WORKLOADS = ["steps", "failures", "family", "long", "waiting", "keys"];
const NOT_HEARD = (): void => {};
/** However bad the faults were, this long after them all work is done. */
const DRAIN_MS = 180_000;
const LOOK_MS = 500;
const MOST_LOST = 40;
/** A failover takes at least this long: longer than epochs run ahead of the server's clock. */
const FAILOVER_MS = 100;

/** This store has no commit. */
function withoutCommits(plan: Plan): Plan {
  return { ...plan, rows: plan.rows.map((row) => (row.way === "commits" ? { ...row, way: "works" } : row)) };
}

class AtomicWorld {
  readonly scheduler = new Scheduler();
  readonly story = new Story(this.scheduler, 80);
  readonly tally = newTally();
  failovers = 0;
  lostScripts = 0;
  readonly #random: SeededRandom;
  readonly #profile: Profile;
  readonly #server: AtomicServer;
  readonly #conditions = new Conditions();
  readonly #faults = new Faults({});
  readonly #witness = new Witness(this.story, this.tally);
  readonly #kernel: Kernel;
  readonly #wakeups: WakeupHub;
  readonly #workloads: readonly Workload[];
  readonly #drafts: readonly JobDraft[];
  readonly #processes: SimProcess[] = [];
  readonly #laws = new FenceLaws();
  readonly #waiting = new AtomicWaitingLaw();
  readonly #keys = new AtomicKeysLaw();
  readonly #reruns = new AtomicRerunLaw();
  readonly #outbox: Outbox;
  readonly #book: PlanBook;
  readonly #batches = new AtomicBatchesLaw();
  readonly #blobs = new SimBlobs();
  /** What was not acknowledged since the latest loss. */
  #unsent: Set<JobDraft>;

  constructor(seed: number, Server: typeof AtomicServer, hasBatches: boolean) {
    this.#server = new Server({ now: () => this.scheduler.wall });
    this.#random = new SeededRandom(`atomic ${hasBatches ? "batches " : ""}${seed}`);
    const workloads = hasBatches ? [...WORKLOADS, BATCHES] : WORKLOADS;
    const drawn = drawProfile(this.#random.fork("profile"), () => workloads);
    // The acts of the nemesis, the restore of a file among them, are others here.
    this.#profile = { ...drawn, sessions: false, hosts: 1, jobs: 2 * drawn.jobs };
    this.#kernel = new Kernel({
      ...this.#profile,
      now: () => this.scheduler.now,
      byPid: (pid) => this.#processes[pid - 1] ?? null,
    });
    this.#wakeups = new WakeupHub(this.#random.fork("wakeups"));
    this.#workloads = workloadsNamed(workloads);
    this.#drafts = drawDrafts(this.#random.fork("drafts"), this.#profile, this.#workloads, undefined);
    this.#unsent = new Set(this.#drafts);
    this.#outbox = new Outbox(signalsFor(this.#drafts));
    this.#book = new PlanBook(hasBatches ? drawPlans(this.#random.fork("plans")).map(withoutCommits) : []);
  }

  async unfold(): Promise<void> {
    const { scheduler } = this;
    const { faultsMs, workers } = this.#profile;
    for (let slot = 0; slot < workers; slot++) this.#startWorker(slot);
    this.#startProducer();
    this.#startSignaller();
    if (this.#book.plans.length > 0) this.#startSubmitter();
    this.#actLater();
    const look = (): void => {
      const answers = this.#witness.take();
      this.#laws.hear(answers, this.tally);
      if (answers.length === 0) return;
      this.#read((data) => {
        this.#keys.onAnswers(answers, data);
        this.#reruns.onAnswers(answers, data);
        this.#batches.onLook(data);
      });
    };
    await scheduler.run(faultsMs, look, () => false);
    this.story.tell("world", "CALM");
    this.#conditions.calmAt = scheduler.now;
    for (const process of this.#processes) process.resume();
    let lookedAt = 0;
    const drained = await scheduler.run(faultsMs + DRAIN_MS, look, () => {
      if (this.#unsent.size + this.#book.left.length > 0 || scheduler.now - lookedAt < LOOK_MS) return false;
      lookedAt = scheduler.now;
      this.#read((data) => this.#waiting.onLook(data, scheduler.now));
      return this.#read((data) => data.queued().length + data.running().length === 0);
    });
    demand(drained, () => `${DRAIN_MS} ms after the last fault there is work left`);
    this.#read((data) => this.#audit(data));
  }

  end(): void {
    for (const process of this.#processes) process.kill("ended");
  }

  #audit(data: Data): void {
    demand(this.#server.torn.length === 0, () => `scripts threw after a write: ${this.#server.torn.join(", ")}`);
    this.#waiting.audit(data);
    this.#reruns.audit();
    this.#batches.audit(data, this.#book.plans);
    const wrong = data.wrongIndexes();
    demand(wrong.length === 0, () => wrong.join("; "));
    for (const { id, dedupeKey } of this.#drafts) {
      const job = data.jobById(id);
      // A job with a key may have been another one that held it.
      demand(job !== null || dedupeKey !== null, () => `job ${id} was acknowledged after the last loss, and is gone`);
      demand(job === null || isTerminal(job.state), () => `job ${id} is ${job?.state}`);
      if (job?.state === "quarantined") this.tally.innocents++;
    }
  }

  #read<T>(body: (data: Data) => T): T {
    let answer: T;
    this.#server.eval("look", (keys) => {
      answer = body(new Data(keys));
      return "";
    });
    return answer!;
  }

  #spawn(name: string): SimProcess {
    const { scheduler, story } = this;
    const parts = { scheduler, story, kernel: this.#kernel, random: this.#random };
    const process = new SimProcess(name, this.#processes.length + 1, parts);
    process.onDeath((cause) => void (cause === "ended" || this.tally.deaths++));
    this.#processes.push(process);
    return process;
  }

  #again(start: () => void): void {
    const delay = this.#random.fork(`start ${this.scheduler.eventCount}`).between(100, 1_500);
    this.scheduler.at(this.scheduler.now + delay, null, start);
  }

  /** A worker that was killed, or that stopped because the store was replaced, is started again. */
  #startWorker(slot: number): void {
    const process = this.#spawn(`w${slot}.${this.#processes.length + 1}`);
    process.onDeath((cause) => void (cause === "ended" || this.#again(() => this.#startWorker(slot))));
    const contracts = this.#contracts(process);
    const ended = (thrown: unknown): void => {
      if (process.alive) this.story.tell(process.name, `ends: ${String(thrown)}`);
      process.kill("itself");
    };
    process.main.soon(() => {
      openEngine(this.#engineWorld(), process, contracts)
        .then((engine) => engine.start({ concurrency: this.#profile.concurrency }))
        .then((handle) => handle.stopped)
        .then(() => ended("it stopped"), ended);
    });
  }

  /** What was acknowledged before a loss may be lost: it is sent again, by the same ids. */
  #startProducer(): void {
    const process = this.#spawn("producer");
    const store = this.#storeFor(process, process.main);
    const settings = [...contractsFor(this.#workloads, process, NOT_HEARD, NOT_HEARD).jobs.values()].map(
      (contract) => contract.settings,
    );
    process.main.soon(() => void this.#produce(process, store, settings));
  }

  #startSignaller(): void {
    const process = this.#spawn("signaller");
    const store = this.#storeFor(process, process.main);
    process.main.soon(() => void signal(process, store, this.#outbox));
  }

  #contracts(process: SimProcess): Contracts {
    const handlerTold: HandlerTold = (run, word) => void (word === "began" && this.#keys.began(run));
    return contractsFor(this.#workloads, process, NOT_HEARD, handlerTold, {
      began: (run, line) => this.#read((data) => this.#batches.began(data, run, line)),
      ended: (run, line, how) => this.#batches.ended(run, line, how),
      given: NOT_HEARD,
    });
  }

  /** It is killed now and then, too: the next one starts each submission again. */
  #startSubmitter(): void {
    const process = this.#spawn("submitter");
    process.onDeath((cause) => void (cause === "ended" || this.#again(() => this.#startSubmitter())));
    const fate = process.random.fork("fate");
    if (fate.chance(0.7))
      this.scheduler.at(this.scheduler.now + fate.between(1, 2_500), null, () => {
        if (!this.#conditions.calm && process.alive) process.kill("nemesis");
      });
    const contracts = this.#contracts(process);
    const ended = (thrown: unknown): void => {
      if (process.alive) this.story.tell(process.name, `ends: ${String(thrown)}`);
      process.kill("itself");
    };
    process.main.soon(() => {
      openEngine(this.#engineWorld(), process, contracts)
        .then((engine) => submitAll(process, engine, contracts.batches, this.#book))
        .then(
          () => this.#book.left.length === 0 || ended("it stopped"),
          (thrown: unknown) => ended(thrown),
        );
    });
  }

  async #produce(process: SimProcess, store: Store, settings: Parameters<Store["declare"]>[0]): Promise<void> {
    const random = process.random.fork("producer");
    for (;;) {
      await pause(process.main.clock, random.between(20, 400));
      const some = [...this.#unsent].slice(0, 1 + random.below(4));
      const { failovers } = this;
      try {
        if (some.length > 0) await store.declare(settings);
        if (some.length > 0) await store.enqueue(some);
        if (failovers === this.failovers) for (const draft of some) this.#unsent.delete(draft);
      } catch {
        // Sent again.
      }
    }
  }

  #engineWorld(): EngineWorld {
    const { story } = this;
    return {
      kernel: this.#kernel,
      story,
      mutant: null,
      blobs: this.#blobs,
      claimsAhead: this.#profile.ahead,
      storeFor: (process, thread) => this.#storeFor(process, thread),
    };
  }

  #storeFor(process: SimProcess, thread: Thread): Store {
    return wire(atomicStore(this.#server), {
      process,
      thread,
      scheduler: this.scheduler,
      profile: this.#profile,
      conditions: this.#conditions,
      faults: this.#faults,
      witness: this.#witness,
      wakeups: this.#wakeups,
      othersAwake: () => this.#processes.some((one) => one.isWorker && one !== process && one.alive && !one.paused),
      aboutToRecover: () => false,
      claimLost: () => {},
    });
  }

  #actLater(): void {
    const { scheduler } = this;
    const random = this.#random.fork(`act ${scheduler.eventCount}`);
    scheduler.at(scheduler.now + random.between(200, 2 * this.#profile.nemesisEveryMs), null, () => {
      if (this.#conditions.calm) return;
      if (random.chance(0.35)) this.#failOver(random);
      else {
        const workers = this.#processes.filter((one) => one.isWorker && one.alive && !one.paused);
        const victim = workers[random.below(Math.max(1, workers.length))];
        if (random.chance(0.6)) victim?.kill("nemesis");
        else victim?.pause(random.between(500, 8_000));
      }
      this.#actLater();
    });
  }

  #failOver(random: SeededRandom): void {
    const { scheduler } = this;
    const lost = random.below(Math.min(MOST_LOST, this.#server.scripts) + 1);
    this.story.tell("world", `FAILOVER: ${lost} scripts are lost`);
    this.#server.loseSuffix(lost);
    this.failovers++;
    this.lostScripts += lost;
    this.#laws.lost();
    this.#reruns.lost();
    this.#read((data) => this.#keys.lost(data));
    this.#unsent = new Set(this.#drafts);
    this.#outbox.wentBack();
    this.#batches.lost();
    const hadEnded = this.#book.left.length === 0;
    this.#book.wentBack();
    // The one before has ended with its last batch.
    if (hadEnded && this.#book.plans.length > 0) this.#again(() => this.#startSubmitter());
    this.#conditions.restarts++;
    this.#conditions.downUntil = scheduler.now + random.between(FAILOVER_MS, 1_500);
  }
}

/** Fences only grow, whatever was lost, and only the latest one issued is ever accepted, once. */
class FenceLaws {
  readonly #latest = new Map<string, Pick<Lease, "epoch" | "fence" | "worker">>();
  readonly #ended = new Set<string>();
  #highest = 0;
  /** The highest epoch that was issued before the latest loss. */
  #before = 0;

  lost(): void {
    this.#before = this.#highest;
  }

  hear(answers: readonly Answer[], tally: Tally): void {
    for (const answer of answers) {
      if (answer.of === "turn") {
        answer.settlements.forEach(({ lease }, at) => {
          const { is } = answer.answer.settled[at]!;
          if (is === "stale") tally.staleWrites++;
          if (is !== "applied") return;
          this.#accepted(lease);
          const attempt = `${lease.jobId} ${lease.epoch}/${lease.fence}`;
          demand(!this.#ended.has(attempt), () => `two settlements of ${attempt} were applied`);
          this.#ended.add(attempt);
        });
        for (const { lease, lastOutcome } of answer.answer.claimed) {
          if (lastOutcome === "crashed" || lastOutcome === "lost") tally.takeovers++;
          this.#issued(lease);
        }
      } else if (answer.of === "write")
        answer.writes.forEach(({ lease }, at) => {
          const { is } = answer.answers[at]!;
          if (is === "stale") tally.staleWrites++;
          if (is === "applied") this.#accepted(lease);
        });
    }
  }

  #issued(lease: Lease): void {
    const { jobId, epoch, fence, worker } = lease;
    const before = this.#latest.get(jobId) ?? { epoch: 0, fence: 0 };
    const grows = epoch > before.epoch || (epoch === before.epoch && fence > before.fence);
    demand(grows, () => `${jobId} was claimed under ${epoch}/${fence} after ${before.epoch}/${before.fence}`);
    demand(epoch > this.#before, () => `${jobId} was claimed under epoch ${epoch}; ${this.#before} was lost before`);
    this.#latest.set(jobId, { epoch, fence, worker });
    this.#highest = Math.max(this.#highest, epoch);
  }

  #accepted({ jobId, epoch, fence, worker }: Lease): void {
    const latest = this.#latest.get(jobId);
    const isLatest = latest?.epoch === epoch && latest.fence === fence && latest.worker === worker;
    demand(isLatest, () => `a write of ${jobId} under ${epoch}/${fence} was accepted, and is not of the latest claim`);
    demand(
      epoch > this.#before,
      () => `a write of ${jobId} under ${epoch}/${fence} of a run that has ended was accepted`,
    );
  }
}
