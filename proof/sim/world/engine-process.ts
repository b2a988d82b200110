// The real engine in a simulated process, wired as `open()` wires it: the same recovery at open, the same worker host, the same
// maintenance in a separate thread. Only clock, chance, locks and the way to the store are the world's.
import { Engine } from "../../../src/engine/engine.ts";
import { engineSettings, settingsWithDefaults } from "../../../src/engine/options.ts";
import { idSource } from "../../../src/job/enqueue.ts";
import { toStoredError } from "../../../src/job/errors.ts";
import { EventBus } from "../../../src/job/events.ts";
import { Maintenance, type MaintenanceOptions } from "../../../src/recovery/maintenance.ts";
import type { Backend, MaintenanceHandle, MaintenanceListener } from "../../../src/stores/backend.ts";
import { NOTHING_CHECKED } from "../../../src/stores/store-parts.ts";
import type { Liveness, Neighbours, WorkerRow } from "../../../src/stores/liveness.ts";
import { SCHEMA_VERSION } from "../../../src/stores/sqlite/schema.ts";
import type { SimBlobs } from "../workloads/batches.ts";
import type { Contracts } from "../workloads/workload.ts";
import type { SimProcess } from "./process.ts";
import { CONTACT_MS, HEARTBEAT_MS, LEASE_MS, PROBE_MS, SWEEP_MS } from "./profile.ts";
import type { SeededRandom } from "./random.ts";
import { BOOT_ID, type World } from "./world.ts";

/** A thread takes a while to start. */
const THREAD_BOOT_MS = 300;

export const SETTINGS = engineSettings({
  heartbeat: {
    interval: `${HEARTBEAT_MS}ms`,
    lease: `${LEASE_MS}ms`,
    sweep: `${SWEEP_MS}ms`,
    probe: `${PROBE_MS}ms`,
    contact: `${CONTACT_MS}ms`,
  },
  poll: "3s",
});

/** What an engine needs of the world around it. */
export type EngineWorld = Pick<World, "storeFor" | "kernel" | "story" | "mutant"> & {
  /** Where output files go. Omitted: nowhere. */
  readonly blobs?: SimBlobs;
  /** How many jobs a worker claims beyond its slots. Omitted: none. */
  readonly claimsAhead?: number;
  /** False: only opens beat, watch and recover. */
  readonly maintenances?: boolean;
  /** Hears that the engine in this process stopped trusting what it holds. */
  /** `lateMs`: how long ago it expired. */
  readonly leaseLost?: (process: SimProcess, lateMs: number) => void;
  /** Hears that maintenance ends its own process. */
  readonly maintenanceKills?: (process: SimProcess) => void;
};

/** Opens the engine: settings of kinds, recovery, then ready for work. Rejects if the store failed on the way. */
export async function openEngine(
  world: EngineWorld,
  process: SimProcess,
  { jobs: contracts, batches, requests }: Contracts,
): Promise<Engine> {
  const { clock } = process.main;
  const random = process.random.fork("engine");
  const bus = new EventBus(toStoredError);
  bus.on("lease.lost", ({ lateMs }) => {
    if (process.alive) world.leaseLost?.(process, lateMs);
  });
  bus.onAny((event) => {
    if (process.alive && TOLD.has(event.name)) world.story.tell(process.name, `${event.name} ${summary(event)}`);
  });
  // Schedules have histories of their own (schedules/world.ts): the laws here are about jobs that producers enqueue.
  const { schedules: _, ...store } = world.storeFor(process, process.main);
  const real = world.kernel.livenessFor(process);
  const liveness = world.mutant?.liveness?.(real, process) ?? real;
  const backend: Backend = {
    store,
    liveness,
    schemaVersion: SCHEMA_VERSION,
    private: false,
    // The thread boots and beats on its own; the main one only hears of it.
    startMaintenance: (options: MaintenanceOptions, host: MaintenanceListener) =>
      new Promise((resolve) => {
        if (world.maintenances === false) return resolve(NO_MAINTENANCE);
        const beats: Beats = { at: null };
        host.beatsAt?.(() => beats.at);
        host.contact?.(() => !process.isCut);
        process.maintenance.after(random.next() * THREAD_BOOT_MS, () => {
          const maintenance = startMaintenance(world, process, liveness, bus, options, host, beats);
          maintenances.set(process, maintenance);
          process.onReconnect = () => maintenance.beat();
          process.main.soon(() => resolve(maintenance));
        });
      }),
    prepare: async () => NOTHING_CHECKED,
    removeStrays: async () => [],
    close: () => store.close(),
  };
  const blobs = world.blobs?.for(() => process.alive) ?? null;
  const identity = { host: "sim", bootId: BOOT_ID, namespace: process.host, pid: process.pid, startTicks: null };
  const engine = new Engine({
    backend,
    settings: SETTINGS,
    contracts,
    batches,
    ...(requests && { requests: requests.kinds, wire: { wire: requests.wire } }),
    blobs: blobs && (world.mutant?.blobs?.(blobs) ?? blobs),
    clock,
    random,
    bus,
    identity,
    processState: world.kernel.processCheckFor(process),
    claimsAhead: world.claimsAhead ?? 0,
  });
  await store.declare([...contracts.values()].map((contract) => settingsWithDefaults(contract, SETTINGS)));
  await engine.operator.recoverAtOpen();
  return engine;
}

/** The maintenance of each process, if it has one: some mutants stop it too early. */
export const maintenances = new WeakMap<SimProcess, MaintenanceHandle>();

const NO_MAINTENANCE: MaintenanceHandle = { beat: () => {}, stop: async () => {} };

/** The memory that both threads see: when the last accepted heartbeat was sent. */
interface Beats {
  at: number | null;
}

/** The maintenance thread: it shares nothing with the main one but messages, and the instant of the last accepted heartbeat. */
function startMaintenance(
  world: EngineWorld,
  process: SimProcess,
  liveness: Liveness,
  events: EventBus,
  options: MaintenanceOptions,
  host: MaintenanceListener,
  beats: Beats,
): MaintenanceHandle {
  const { main, maintenance: thread } = process;
  const { clock } = thread;
  const random = process.random.fork(`maintenance of ${options.worker.slice(-8)}`);
  const store = world.storeFor(process, thread);
  const newId = idSource(clock, random);
  const processState = world.kernel.processCheckFor(process);
  const neighbours = hintsIn(process, random.fork("hints"));
  const deps = { store, liveness, clock, random, events, newId, processState, neighbours };
  const maintenance = new Maintenance(deps, options, {
    loopLagMs: () => process.loopLagMs(),
    beaten(sentAtMono, answer) {
      beats.at = sentAtMono;
      main.soon(() => host.beaten(sentAtMono, answer));
    },
    disowned: () => main.soon(() => host.disowned()),
    unfit: (why, detail) => main.soon(() => host.unfit(why, detail)),
    kill: () => {
      world.maintenanceKills?.(process);
      process.kill("itself");
    },
  });
  maintenance.start();
  return {
    beat: (leases) => thread.soon(() => void maintenance.beat(leases)),
    stop: () =>
      new Promise((resolve) => {
        const exit = (): void => main.soon(resolve);
        thread.soon(() => void maintenance.stop().then(exit));
        main.after(2_000, resolve);
      }),
  };
}

/** How often a worker hears that a neighbour may be dead, at most. */
const HINT_MS = 2_000;

/** Hints that are mostly wrong: about workers that live, stand still, or sleep. They may make a process look, and nothing else. */
function hintsIn({ maintenance: thread }: SimProcess, random: SeededRandom): Neighbours {
  let workers: readonly WorkerRow[] = [];
  let isClosed = false;
  let ended: (worker: string) => void = () => {};
  const again = (): void => {
    if (isClosed) return;
    if (workers.length > 0) ended(random.pick(workers).id);
    thread.after(random.next() * HINT_MS, again);
  };
  thread.after(random.next() * HINT_MS, again);
  return {
    know: (rows) => void (workers = rows),
    onEnded: (listener) => void (ended = listener),
    close: () => void (isClosed = true),
  };
}

const TOLD: ReadonlySet<string> = new Set([
  "worker.disowned",
  "store.replaced",
  "store.restored",
  "worker.stopped",
  "lease.lost",
  "job.released",
  "job.overdue",
  "store.failed",
  "recovery.failed",
  "heartbeat.failed",
]);

function summary(event: object): string {
  const { error, ...rest } = event as { error?: { message: string } };
  const fields = Object.entries(rest).flatMap(([key, value]) =>
    key !== "name" && (typeof value === "string" || typeof value === "number" || typeof value === "boolean")
      ? [`${key}=${value}`]
      : [],
  );
  return [...fields, ...(error ? [error.message] : [])].join(" ");
}
