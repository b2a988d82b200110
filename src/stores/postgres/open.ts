// Opening the PostgreSQL store: the server, its schema, its clock, and what belongs to it beside the port (liveness, bell, keeper).
// It never migrates: a worker's role has no such right. Everything that can be wrong on the way is said here.
import type { Backend, KeeperHandle, KeeperListener } from "../../core/backend.ts";
import type { Clock, Random } from "../../core/clock.ts";
import { durationMs } from "../../core/duration.ts";
import type { Emitter } from "../../core/events.ts";
import { idSource } from "../../core/ids.ts";
import { NOTHING_CHECKED } from "../../core/integrity.ts";
import { Keeper, type KeeperOptions } from "../../core/keeper.ts";
import type { ProcessCheck } from "../../core/liveness.ts";
import { defaultOf } from "../../engine/settings.ts";
import { checkProcess } from "../../platform/identity.ts";
import { StandIn } from "../../core/stand-in.ts";
import { newSharedTimes, sharedTimes } from "../../platform/keeper-messages.ts";
import { startKeeperThread } from "../../platform/keeper-thread.ts";
import { type Address, canBeCopied } from "./address.ts";
import { Bell } from "./bell.ts";
import { openConnection, type StoreSettings } from "./client.ts";
import { newClient } from "./connection.ts";
import { DirectSession } from "./direct-session.ts";
import type { PostgresKeeper } from "./keeper-thread.ts";
import { AdvisoryLiveness, lockKey } from "./liveness.ts";
import { MIGRATIONS } from "./migrations/index.ts";
import { bellChannel } from "./schema.ts";
import { serverClock } from "./server-clock.ts";
import { PostgresStore } from "./store.ts";
import { countPresent } from "./workers.ts";

export interface OpenPostgresDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  /** How long a worker's lock may be missing before contact with it is lost. Default: that of `heartbeat.contact`. */
  readonly contactMs?: number;
}

const KEEPER = new URL("./keeper-thread.ts", import.meta.url);
/** The main thread's own session is for looks at the open and by hand, and for a lock until the keeper has it. */
const SESSION_IDLE_MS = 3_000;

export async function openPostgres(deps: OpenPostgresDeps, given: Address, settings: StoreSettings): Promise<Backend> {
  const { random, events } = deps;
  const { schema } = given;
  // Our own connections carry a name that no other process has, those of the user's pool while they work for us. The worker that
  // recovers our jobs can end them all.
  const client = { ...given.client, application_name: `outlive-${random.hex(6)}` };
  const address = { ...given, client };
  const shared = newSharedTimes();
  const clock = serverClock(deps.clock, sharedTimes(shared));
  const { connection, pooled } = await openConnection(address, settings, clock);
  if (pooled) events.emit("store.notice", { about: "pooler", text: POOLED });
  const connect = () => newClient(address.client);
  const session = new DirectSession({ connect, clock, random, idleMs: SESSION_IDLE_MS });
  const liveness = new AdvisoryLiveness({
    session,
    schema,
    clock,
    random,
    contactMs: deps.contactMs ?? durationMs(defaultOf("heartbeat.contact"), "heartbeat.contact"),
    countWorkers: () => countPresent(connection),
    onServerNow: (now, sentAtMono) => clock.set(now, sentAtMono),
    onHold: (why, holdMs) => events.emit("recovery.held", { why, holdMs }),
  });
  const newId = idSource(clock, random);
  const bell = new Bell(connection, clock);
  const store = new PostgresStore({ connection, clock, newId, bell });
  const processState = checkProcess;
  const keepers = {
    ...deps,
    clock,
    address,
    settings,
    pooled,
    shared,
    session,
    liveness,
    bell,
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
    startKeeper: (options, host) =>
      canBeCopied(address.client) ? inThread(keepers, options, host) : beside(keepers, options, host),
    // The server recovers by itself and checks its own log; `outlive check` reads more.
    prepare: async () => NOTHING_CHECKED,
    removeStrays: async () => [],
    async close() {
      await session.close();
      await store.close();
    },
  };
}

interface Keepers extends OpenPostgresDeps {
  readonly address: Address;
  readonly settings: StoreSettings;
  readonly pooled: boolean;
  readonly shared: SharedArrayBuffer;
  readonly session: DirectSession;
  readonly liveness: AdvisoryLiveness;
  readonly bell: Bell;
  readonly store: PostgresStore;
  readonly newId: () => string;
  readonly processState: ProcessCheck;
}

type Host = KeeperListener;

/** The thread's session takes the worker's lock before ours lets go of it; should the thread die, ours takes it back. */
function inThread(keepers: Keepers, options: KeeperOptions, host: Host): Promise<KeeperHandle> {
  const { clock, events, address, settings, shared, session, bell } = keepers;
  const { client, schema } = address;
  const key = lockKey(schema, options.worker);
  const own: PostgresKeeper = { client, schema, settings };
  const stand = new StandIn(keepers, options, host);
  const up = (): void => {
    stand.end();
    void session.release(key);
    // What was rung while nobody listened.
    bell.heard();
  };
  const down = (): void => {
    stand.begin();
    void session.hold(key).catch(() => {});
  };
  const hears = { bell: () => bell.heard(), up, down };
  return stand.until(() => startKeeperThread({ clock, events, file: KEEPER, own, shared, ...hears }, options, host));
}

/** The pool's options hold a function, which no thread can be given. A handler that blocks the loop then silences the worker. */
async function beside(keepers: Keepers, options: KeeperOptions, host: Host): Promise<KeeperHandle> {
  const { events, address, session, bell, pooled } = keepers;
  events.emit("store.notice", { about: "keeper", text: BESIDE });
  if (!pooled) {
    await session.listen(bellChannel(address.schema), () => bell.heard());
    host.contact?.(() => session.greeting !== null);
  }
  const unhear = session.onReturn(() => bell.heard());
  const keeper = new Keeper(keepers, options, { ...host, loopLagMs: () => 0, kill: () => {} });
  const unheed = session.onReturn(() => void keeper.beat());
  keeper.start();
  return {
    beat: () => void keeper.beat(),
    async stop() {
      unhear();
      unheed();
      session.unlisten(bellChannel(address.schema));
      await keeper.stop();
    },
  };
}

const POOLED =
  "A pooler stands between this process and PostgreSQL, so a lost session says nothing about a worker. A death on the same host, or under a supervisor, is still found at once; a host that is lost is noticed only when the lease of its workers has expired. Give workers a direct connection.";
const BESIDE =
  "The options of the pool hold a function, so the keeper runs beside the worker and not in a thread: a handler that blocks the event loop for a lease is taken for dead. Make the pool of plain options.";
