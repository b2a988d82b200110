// What the maintenance thread opens on PostgreSQL: the session that holds the worker's lock and listens for wake-ups, and three connections
// for its work, so that neither a long purge nor a recovery keeps the heartbeat waiting.
import { serverClock, systemClock, systemRandom as random } from "../../platform/clock.ts";
import { maintainInThread } from "../../recovery/maintenance-thread.ts";
import { wakeupChannel, type ClientSettings } from "./address.ts";
import { Connection, newClient } from "./connection.ts";
import { DirectSession } from "./direct-session.ts";
import { wrapError } from "./errors.ts";
import { AdvisoryLiveness, lockKey } from "./liveness.ts";
import { type PulseAddress, pulseOver, type StoreSettings } from "./open.ts";
import { postgresStore } from "./store.ts";
import { WakeupChannel, wakeupOf } from "./wakeup.ts";
import { countPresent, setEvidence } from "./workers.ts";

/** How to reach the server, and which schema to use. */
export interface PostgresMaintenance {
  readonly client: ClientSettings;
  readonly schema: string;
  readonly settings: StoreSettings;
  /** The Redis server in which workers show that they live; null: sessions of this server do. */
  readonly pulse: PulseAddress | null;
}

const MAINTENANCE_CONNECTIONS = 3;

maintainInThread<PostgresMaintenance>(async (own, { options, newId, events, times, wakeup: wake }) => {
  const { client, schema } = own;
  const clock = serverClock(systemClock, times);
  const session = new DirectSession({
    connect: () => newClient(client),
    clock,
    random,
    onConnected: (connected) => times.setInContact(connected),
  });
  await session.hold(lockKey(schema, options.worker));
  await session.listen(wakeupChannel(schema), (payload) => wake(wakeupOf(payload)));
  // Wake-ups sent while the connection was down are lost, and the main thread may be waiting for the store to be back.
  session.onReturn(() => wake("wake"));
  const { durability } = own.settings;
  const connection = await Connection.open({
    client,
    pool: null,
    schema,
    max: MAINTENANCE_CONNECTIONS,
    durability,
    maintenance: true,
  });
  const store = postgresStore({ connection, clock, newId, wakeup: new WakeupChannel(connection, clock) });
  // Jobs that the maintenance itself requeues wake its own worker without a round trip through the server.
  store.onWakeup(() => wake("wake"));
  const { contactMs, heartbeatMs } = options.times;
  const onHold = (why: string, holdMs: number): void => events.emit("recovery.held", { why, holdMs });
  const onHidden = (text: string): void => events.emit("store.notice", { about: "liveness", text });
  const advisory = new AdvisoryLiveness({
    session,
    schema,
    clock,
    random,
    contactMs,
    ownWorker: options.worker,
    countWorkers: () => countPresent(connection),
    onServerNow: (now, sentAtMono) => clock.set(now, sentAtMono),
    onHold,
  });
  const { pulse: address } = own;
  const ownWorker = options.worker;
  const pulse =
    address === null
      ? null
      : await pulseOver({ address, inner: advisory, clock, random, contactMs, ownWorker, onHold, onHidden });
  await pulse?.keep(ownWorker, heartbeatMs, (evidence) => setEvidence(connection, ownWorker, evidence));
  const liveness = pulse ?? advisory;
  const close = async (): Promise<void> => {
    await pulse?.close();
    await store.close();
    await session.close();
  };
  return { store, liveness, clock, close, onReturn: (listener) => void session.onReturn(listener) };
}, wrapError);
