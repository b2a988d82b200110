// Opening the PostgreSQL store: the server, its schema, its clock, and what belongs to it in addition to the port (liveness, wakeup, maintenance).
// It never migrates: a worker's role has no such right. Everything that can be wrong on the way is reported here.
import { defaultOf } from "../../engine/settings.ts";
import { idSource } from "../../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Emitter } from "../../job/events.ts";
import { type Clock, durationMs, type Random } from "../../job/time.ts";
import { newSharedTimes, type ServerClock, serverClock, sharedTimes } from "../../platform/clock.ts";
import { checkProcess } from "../../platform/identity.ts";
import { programFile } from "../../platform/program-file.ts";
import { InterimHeartbeat } from "../../recovery/heartbeat.ts";
import { Maintenance, type MaintenanceOptions } from "../../recovery/maintenance.ts";
import { startMaintenanceThread } from "../../recovery/maintenance-thread.ts";
import type { Backend, MaintenanceHandle, MaintenanceListener } from "../backend.ts";
import { NOTHING_CHECKED } from "../store-parts.ts";
import type { Liveness, ProcessCheck } from "../liveness.ts";
import type { Store } from "../port.ts";
import type { PulseDeps, RedisPulse } from "../redis/pulse.ts";
import { type Address, wakeupChannel, canBeCopied } from "./address.ts";
import { Connection, newClient } from "./connection.ts";
import { DirectSession } from "./direct-session.ts";
import { openingError } from "./errors.ts";
import { AdvisoryLiveness, lockKey } from "./liveness.ts";
import type { PostgresMaintenance } from "./maintenance-thread.ts";
import { assertMigrated } from "./migrate.ts";
import { MIGRATIONS } from "./migrations/index.ts";
import { postgresStore } from "./store.ts";
import { WakeupChannel, wakeupOf } from "./wakeup.ts";
import { countPresent, setEvidence } from "./workers.ts";

/** Only programs that ask for it load it, and a driver of Redis with it. */
export async function pulseOver(deps: PulseDeps): Promise<RedisPulse> {
  const { RedisPulse: Pulse } = await import("../redis/pulse.ts");
  return new Pulse(deps);
}

export type PulseAddress = PulseDeps["address"];

export interface OpenPostgresDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  /** How long a worker's lock may be missing before contact with it is lost. Default: that of `heartbeat.contact`. */
  readonly contactMs?: number;
}

/** The main thread's own session is for checks at the open and by hand, and for a lock until the maintenance has it. */
const SESSION_IDLE_MS = 3_000;

/** `pulse`: the Redis server in which workers show that they live; null: sessions of this server do. */
export async function openPostgres(
  deps: OpenPostgresDeps,
  given: Address,
  settings: StoreSettings,
  pulse: PulseAddress | null = null,
): Promise<Backend> {
  const { random, events } = deps;
  const { schema } = given;
  // Our own connections carry a name that no other process has, those of the user's pool while they work for us. The worker that
  // recovers our jobs can end them all.
  const client = { ...given.client, application_name: `outlive-${random.hex(6)}` };
  const address = { ...given, client };
  const shared = newSharedTimes();
  const clock = serverClock(deps.clock, sharedTimes(shared));
  const { connection, pooled } = await openConnection(address, settings, clock);
  if (pooled && pulse === null) events.emit("store.notice", { about: "pooler", text: POOLED });
  const connect = () => newClient(address.client);
  const session = new DirectSession({ connect, clock, random, idleMs: SESSION_IDLE_MS });
  const contactMs = deps.contactMs ?? durationMs(defaultOf("heartbeat.contact"), "heartbeat.contact");
  const onHold = (why: string, holdMs: number): void => events.emit("recovery.held", { why, holdMs });
  const advisory = new AdvisoryLiveness({
    session,
    schema,
    clock,
    random,
    contactMs,
    countWorkers: () => countPresent(connection),
    onServerNow: (now, sentAtMono) => clock.set(now, sentAtMono),
    onHold,
  });
  const onHidden = (text: string): void => events.emit("store.notice", { about: "liveness", text });
  const remote =
    pulse === null
      ? null
      : await pulseOver({ address: pulse, inner: advisory, clock, random, contactMs, onHold, onHidden });
  const liveness = remote ?? advisory;
  const newId = idSource(clock, random);
  const wakeup = new WakeupChannel(connection, clock);
  const advised = remote === null ? {} : { advice: () => remote.advice() };
  const store = postgresStore({ connection, clock, newId, wakeup, events, ...advised });
  const processState = checkProcess;
  const maintenances = {
    ...deps,
    clock,
    address,
    settings,
    pooled,
    shared,
    session,
    liveness,
    remote,
    connection,
    pulse,
    wakeup,
    store,
    newId,
    processState,
  };
  return {
    store,
    liveness,
    clock,
    schemaVersion: MIGRATIONS.length,
    private: false,
    startMaintenance: (options, host) =>
      canBeCopied(address.client) ? inThread(maintenances, options, host) : inMainThread(maintenances, options, host),
    // The server recovers on its own and checks its own log; `outlive check` reads more.
    prepare: async () => NOTHING_CHECKED,
    removeStrays: async () => [],
    async close() {
      await remote?.close();
      await session.close();
      await store.close();
    },
  };
}

interface MaintenanceDeps extends OpenPostgresDeps {
  readonly address: Address;
  readonly settings: StoreSettings;
  readonly pooled: boolean;
  readonly shared: SharedArrayBuffer;
  readonly session: DirectSession;
  readonly liveness: Liveness;
  readonly remote: RedisPulse | null;
  readonly connection: Connection;
  readonly pulse: PulseAddress | null;
  readonly wakeup: WakeupChannel;
  readonly store: Store;
  readonly newId: () => string;
  readonly processState: ProcessCheck;
}

type Host = MaintenanceListener;

/** The thread's session takes the worker's lock before ours lets go of it; should the thread die, ours takes it back. */
function inThread(maintenances: MaintenanceDeps, options: MaintenanceOptions, host: Host): Promise<MaintenanceHandle> {
  const { clock, events, address, settings, shared, session, wakeup, pulse } = maintenances;
  const { client, schema } = address;
  const key = lockKey(schema, options.worker);
  const own: PostgresMaintenance = { client, schema, settings, pulse };
  const stand = new InterimHeartbeat(maintenances, options, host);
  const up = (): void => {
    stand.end();
    void session.release(key);
    // Wake-ups that were sent while no session listened.
    wakeup.heard();
  };
  const down = (): void => {
    stand.begin();
    void session.hold(key).catch(() => {});
  };
  const file = programFile("stores/postgres/maintenance-thread");
  const hears = { wakeup: wakeup.heard, up, down };
  return stand.until(() => startMaintenanceThread({ clock, events, file, own, shared, ...hears }, options, host));
}

/** The pool's options hold a function, which no thread can be given. A handler that blocks the loop then silences the worker. */
async function inMainThread(
  maintenances: MaintenanceDeps,
  options: MaintenanceOptions,
  host: Host,
): Promise<MaintenanceHandle> {
  const { events, address, session, wakeup, pooled, remote, connection } = maintenances;
  const { worker, times } = options;
  events.emit("store.notice", { about: "maintenance", text: BESIDE });
  if (!pooled) {
    await session.listen(wakeupChannel(address.schema), (payload) => wakeup.heard(wakeupOf(payload)));
    host.contact?.(() => session.greeting !== null);
  }
  const unhear = session.onReturn(() => wakeup.heard());
  const maintenance = new Maintenance(maintenances, options, { ...host, loopLagMs: () => 0, kill: () => {} });
  const unheed = session.onReturn(() => void maintenance.beat());
  maintenance.start();
  const letGo = await remote?.keep(worker, times.heartbeatMs, (evidence) => setEvidence(connection, worker, evidence));
  return {
    beat: (leases) => void maintenance.beat(leases),
    async stop() {
      letGo?.();
      unhear();
      unheed();
      session.unlisten(wakeupChannel(address.schema));
      await maintenance.stop();
    },
  };
}

const POOLED =
  "A pooler stands between this process and PostgreSQL, so a lost session says nothing about a worker. A death on the same host, or under a supervisor, is still found at once; a host that is lost is noticed only when the lease of its workers has expired. Connect workers directly to the server.";
const BESIDE =
  "The options of the pool hold a function, so the maintenance runs in the worker's own thread: a worker whose handler blocks the event loop for a lease is declared dead. Create the pool from plain options.";

// What a client needs of the PostgreSQL store: the store alone, on a schema that is there already. No migration, no recovery, no
// thread, no lock.

export interface StoreSettings {
  readonly durability: "full" | "relaxed";
}

const OLDEST = 14;

export async function openPostgresClient(
  deps: { readonly clock: Clock; readonly random: Random },
  address: Address,
  settings: StoreSettings,
): Promise<Store> {
  const clock = serverClock(deps.clock);
  const { connection } = await openConnection(address, settings, clock);
  const newId = idSource(deps.clock, deps.random);
  return postgresStore({ connection, clock, newId, wakeup: new WakeupChannel(connection, clock) });
}

/** Connects, and refuses a server or a schema that this program can't work on. The clock learns what time it is there. */
export async function openConnection(
  address: Address,
  { durability }: StoreSettings,
  clock: ServerClock,
): Promise<{ readonly connection: Connection; readonly pooled: boolean }> {
  const { schema, client, pool, connections, shown } = address;
  let connection: Connection | undefined;
  try {
    connection = await Connection.open({ client, pool, schema, max: connections, durability });
    const { pooled, version } = await connection.greet();
    if (version < OLDEST * 10_000) throw tooOld(version);
    await connection.lend((session) => assertMigrated(session, schema));
    const sentAtMono = clock.mono();
    const [row] = await connection.rows<{ now: number }>("SELECT outlive.now_ms() AS now");
    clock.set(row!.now, sentAtMono);
    return { connection, pooled };
  } catch (thrown) {
    await connection?.close().catch(() => {});
    throw openingError(shown, thrown);
  }
}

function tooOld(version: number): OutliveError {
  return new OutliveError(
    ErrorCode.storeUnusable,
    `This server is PostgreSQL ${Math.floor(version / 10_000)}.`,
    `Outlive needs ${OLDEST} or newer.`,
    { version },
  );
}
