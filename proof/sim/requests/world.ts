// Histories of requests: the real engine and the real sending of requests in processes that are killed, stopped and cut off, against a remote server (remote.ts) that may
// or may not have acted. What must hold, whatever happens:
//
// - lost: every request ends, and what succeeded has arrived.
// - callback: each end is followed by exactly one callback, which runs.
// - twice: under "fail" at most one sending was acted on; under "ask" one more for each decision to resend.
// - inversion: of a queue in strict order no request arrives before the one before it has ended.
import { contractsOf } from "../../../src/engine/client.ts";
import type { Engine } from "../../../src/engine/engine.ts";
import { kindsOfRequest, requestsOf } from "../../../src/engine/request.ts";
import { pause } from "../../../src/job/time.ts";
import { request, type RequestOptions } from "../../../src/requests.ts";
// The engine imports it when a worker starts: in virtual time nothing waits for a file.
import "../../../src/requests/request-worker.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { migrate } from "../../../src/stores/sqlite/schema.ts";
import type { Mutant } from "../mutants/mutant.ts";
import { demand, Violation } from "../oracle/violation.ts";
import type { Contracts } from "../workloads/workload.ts";
import { emptyDatabase } from "../world/blank-database.ts";
import { openEngine } from "../world/engine-process.ts";
import type { SimProcess } from "../world/process.ts";
import { LEASE_MS, NO_ACTS } from "../world/profile.ts";
import type { SeededRandom } from "../world/random.ts";
import { World } from "../world/world.ts";
import { type Arrival, Remote } from "./remote.ts";

export interface RequestHistory {
  readonly seed: number;
  readonly requests: number;
  readonly arrivals: number;
  readonly kills: number;
  readonly asked: number;
  readonly violation: string | null;
  readonly story: readonly string[];
}

const KINDS = ["again", "once", "asking", "ordered"] as const;
const OF_EACH = 6;
const QUEUES = 2;
const FAULTS_MS = 20_000;
const DRAIN_MS = 180_000;
/** Mean time between two acts. */
const ACT_EVERY_MS = 900;

export async function simulateRequests(seed: number, mutant?: Mutant): Promise<RequestHistory> {
  const db = emptyDatabase();
  migrate(db);
  const world = new World(seed, db, {
    ...(mutant && { mutant }),
    // Some processes stand still with the mark of a request in their hand, and go on when another one has it.
    profile: { workloads: [], killMigration: 0, durability: "full", nemesis: NO_ACTS, isolation: null, stall: 0.04 },
  });
  return new RequestWorld(seed, world).run().finally(() => db.close());
}

class RequestWorld {
  readonly #seed: number;
  readonly #world: World;
  readonly #remote: Remote;
  readonly #random: SeededRandom;
  readonly #workers = new Map<number, SimProcess>();
  readonly #left: string[];
  readonly #all: readonly string[];
  /** How often `onUnknown` decided to send a request again. */
  readonly #allowed = new Map<number, number>();
  #violation: string | null = null;
  #kills = 0;
  #asked = 0;

  constructor(seed: number, world: World) {
    this.#seed = seed;
    this.#world = world;
    this.#random = world.random.fork("requests");
    this.#remote = new Remote(world.scheduler, world.random.fork("remote"), (arrival) => this.#arrived(arrival));
    this.#all = KINDS.flatMap((kind) => Array.from({ length: OF_EACH }, (_, n) => `${kind}-${n}`));
    this.#left = [...this.#all];
  }

  async run(): Promise<RequestHistory> {
    const { scheduler, disk, story } = this.#world;
    try {
      disk.start();
      for (let slot = 0; slot < 3; slot++) this.#start(slot);
      this.#produce();
      this.#strike();
      const look = (): void => {
        if (this.#violation !== null) throw new Violation(this.#violation);
      };
      await scheduler.run(FAULTS_MS, look, () => false);
      this.#world.calm();
      this.#remote.isCalm = true;
      const drained = await scheduler.run(FAULTS_MS + DRAIN_MS, look, () => this.#isDrained());
      demand(drained, () => `lost: ${DRAIN_MS} ms after the last fault these have not ended: ${this.#unended()}`);
      this.#audit(disk.db);
    } catch (thrown) {
      this.#violation = thrown instanceof Violation ? thrown.message : String((thrown as Error).stack);
      story.tell("ORACLE", this.#violation);
    } finally {
      for (const process of this.#world.processes) process.kill("ended");
      disk.end();
    }
    return {
      seed: this.#seed,
      requests: this.#all.length,
      arrivals: this.#remote.arrivals.length,
      kills: this.#kills,
      asked: this.#asked,
      violation: this.#violation,
      story: story.last(),
    };
  }

  // ---- the program

  #contracts(process: SimProcess): Contracts {
    const common = {
      addresses: "any",
      retry: { attempts: 1_000, backoff: { base: "20ms", max: "500ms" } },
      timeouts: { total: "5s" },
    } as const satisfies RequestOptions;
    const sent = (kind: string) => (input: { n: number }) => ({
      url: `http://remote/${kind}/${input.n % QUEUES}/${input.n}`,
    });
    const post = { ...common, method: "POST" } as const;
    const again = request<never>("again", { ...post, ifUnknown: "resend", send: sent("again") });
    const once = request<never>("once", { ...post, ifUnknown: "fail", send: sent("once") });
    const asking = request<never>("asking", { ...post, ifUnknown: "ask", send: sent("asking") });
    const ordered = request<never>("ordered", {
      ...common,
      method: "PUT",
      send: sent("ordered") as never,
      key: ({ n }: { n: number }) => `queue ${n % QUEUES}`,
      order: "strict",
    } as never);
    for (const kind of [again, once, asking, ordered]) {
      kind.onResponse(() => {});
      kind.onError(() => {});
    }
    asking.onUnknown(({ input }) => {
      const { n } = input as { n: number };
      this.#asked++;
      if (this.#remote.hasActedOn("asking", n)) return { status: 200, body: "seen" };
      if (n % 2 === 1) return "fail";
      this.#allowed.set(n, (this.#allowed.get(n) ?? 0) + 1);
      return "resend";
    });
    const all = [again, once, asking, ordered];
    const jobs = contractsOf(all.flatMap((one) => kindsOfRequest(one as never)));
    return { jobs, batches: new Map(), requests: { kinds: requestsOf(all), wire: this.#remote.wireOf(process) } };
  }

  #boot(process: SimProcess, work: (engine: Engine, contracts: Contracts) => Promise<void>): void {
    const contracts = this.#contracts(process);
    process.main.soon(() => {
      openEngine(this.#world.forEngine({}), process, contracts)
        .then((engine) => work(engine, contracts))
        .then(
          () => process.kill("ended"),
          () => process.kill("itself"),
        );
    });
  }

  #start(slot: number): void {
    const process = this.#world.spawn(`w${slot}.${this.#world.processes.length + 1}`);
    this.#workers.set(slot, process);
    process.onDeath(() => this.#later(2_000, () => this.#start(slot)));
    this.#boot(process, async (engine) => (await engine.start({ concurrency: 4 })).stopped);
  }

  #produce(): void {
    const process = this.#world.spawn("producer");
    process.onDeath(() => {
      if (this.#left.length > 0) this.#later(1_000, () => this.#produce());
    });
    this.#boot(process, async (engine, { requests }) => {
      const random = process.random.fork("produce");
      while (this.#left.length > 0) {
        const id = this.#left[0]!;
        const [kind = "", n = ""] = id.split("-");
        await engine.enqueue(requests!.kinds.get(kind)! as never, { n: Number(n) } as never, { id });
        this.#left.shift();
        await pause(process.main.clock, random.next() * (FAULTS_MS / this.#all.length));
      }
    });
  }

  #later(withinMs: number, task: () => void): void {
    const { scheduler } = this.#world;
    const delay = this.#random.fork(`later ${scheduler.eventCount}`).next() * withinMs;
    scheduler.at(scheduler.now + delay, null, task);
  }

  // ---- what is done to it

  #strike(): void {
    const { scheduler, conditions } = this.#world;
    const random = this.#random.fork(`strike ${scheduler.now}`);
    scheduler.at(scheduler.now + random.next() * 2 * ACT_EVERY_MS, null, () => {
      if (conditions.calm) return;
      const victim = this.#workers.get(random.below(this.#workers.size));
      switch (random.weighted({ kill: 6, killAll: 1, pause: 4, cut: 1, block: 1 })) {
        case "kill":
          this.#kill(victim);
          break;
        case "killAll":
          for (const one of this.#workers.values()) this.#kill(one);
          break;
        case "pause":
          victim?.pause(random.pick([0.2, 1.3, 2, 4]) * LEASE_MS);
          break;
        case "cut":
          victim?.cutOff(random.between(0.3, 3) * LEASE_MS);
          break;
        case "block":
          victim?.block(random.between(0.3, 2) * LEASE_MS);
      }
      this.#strike();
    });
  }

  #kill(victim: SimProcess | undefined): void {
    if (!victim?.alive) return;
    this.#kills++;
    victim.kill("nemesis");
  }

  // ---- laws

  #arrived({ kind, queue, n }: Arrival): void {
    if (kind !== "ordered") return;
    for (let earlier = queue; earlier < n; earlier += QUEUES) {
      const state = this.#stateOf(`ordered-${earlier}`);
      if (state === undefined || state < 2)
        this.#violation ??= `inversion: ordered-${n} arrived while ordered-${earlier} had not ended`;
    }
  }

  #stateOf(id: string): number | undefined {
    const row = this.#world.disk.db.sql("SELECT state FROM outlive_jobs WHERE id = ?").get(id);
    return (row as { state: number } | undefined)?.state;
  }

  #isDrained(): boolean {
    const row = this.#world.disk.db.sql("SELECT count(*) AS n FROM outlive_jobs WHERE state < 2").get();
    return this.#left.length === 0 && (row as { n: number }).n === 0;
  }

  #unended(): string {
    const rows = this.#world.disk.db.sql("SELECT id FROM outlive_jobs WHERE state < 2 LIMIT 10").all();
    return [...this.#left, ...rows.map(({ id }) => String(id))].join(", ");
  }

  #audit(db: Database): void {
    const SUCCEEDED = 2;
    const rows = db
      .sql("SELECT j.id, j.state, k.name AS kind FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind")
      .all() as unknown as { id: string; state: number; kind: string }[];
    const states = new Map(rows.map((row) => [row.id, row.state]));
    const callbacks = Map.groupBy(
      rows.filter(({ kind }) => /\.(response|error)$/.test(kind)),
      ({ id }) => id.slice(0, id.indexOf(".")),
    );
    for (const id of this.#all) {
      const [kind = "", n = ""] = id.split("-");
      demand(states.has(id), () => `lost: ${id} is not there`);
      const of = callbacks.get(id) ?? [];
      demand(
        of.length === 1,
        () => `callback: ${id} is followed by ${of.map((one) => one.id).join(", ") || "nothing"}`,
      );
      demand(of[0]!.state === SUCCEEDED, () => `callback: ${of[0]!.id} has not run`);
      const acted = this.#remote.arrivals.filter((one) => one.kind === kind && one.n === Number(n) && !one.rejected);
      demand(states.get(id) !== SUCCEEDED || acted.length > 0, () => `lost: ${id} succeeded and was never acted on`);
      const most =
        kind === "once" ? 1 : kind === "asking" ? 1 + (this.#allowed.get(Number(n)) ?? 0) : Number.POSITIVE_INFINITY;
      demand(acted.length <= most, () => `twice: ${id} was acted on ${acted.length} times, and ${most} are allowed`);
    }
  }
}
