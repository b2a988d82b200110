// What the keeper's thread opens on PostgreSQL: the session that holds the worker's lock and hears the bell, and three connections
// for its work, so that neither a long purge nor a recovery keeps the heartbeat waiting.
import { systemClock, systemRandom as random } from "../../platform/clock.ts";
import { keepInThread } from "../../platform/keep-in-thread.ts";
import type { ClientSettings } from "./address.ts";
import { Bell } from "./bell.ts";
import type { StoreSettings } from "./client.ts";
import { Connection, newClient } from "./connection.ts";
import { DirectSession } from "./direct-session.ts";
import { AdvisoryLiveness, lockKey } from "./liveness.ts";
import { bellChannel } from "./schema.ts";
import { serverClock } from "./server-clock.ts";
import { PostgresStore } from "./store.ts";
import { countPresent } from "./workers.ts";

/** How to come to the server, and to which schema. */
export interface PostgresKeeper {
  readonly client: ClientSettings;
  readonly schema: string;
  readonly settings: StoreSettings;
}

const KEEPER_CONNECTIONS = 3;

keepInThread<PostgresKeeper>(async (own, { options, newId, events, times, bell: wake }) => {
  const { client, schema } = own;
  const clock = serverClock(systemClock, times);
  const session = new DirectSession({
    connect: () => newClient(client),
    clock,
    random,
    onConnected: (connected) => times.setInContact(connected),
  });
  await session.hold(lockKey(schema, options.worker));
  await session.listen(bellChannel(schema), wake);
  // What was rung while the connection was away is lost, and the main thread may be waiting for the store to be back.
  session.onReturn(wake);
  const { durability } = own.settings;
  const connection = await Connection.open({
    client,
    pool: null,
    schema,
    max: KEEPER_CONNECTIONS,
    durability,
    maintenance: true,
  });
  const store = new PostgresStore({ connection, clock, newId, bell: new Bell(connection, clock) });
  // What the keeper itself puts back wakes its own worker without a way through the server.
  store.onBell(wake);
  const liveness = new AdvisoryLiveness({
    session,
    schema,
    clock,
    random,
    contactMs: options.times.contactMs,
    ownWorker: options.worker,
    countWorkers: () => countPresent(connection),
    onServerNow: (now, sentAtMono) => clock.set(now, sentAtMono),
    onHold: (why, holdMs) => events.emit("recovery.held", { why, holdMs }),
  });
  const close = async (): Promise<void> => {
    await store.close();
    await session.close();
  };
  return { store, liveness, clock, close, onReturn: (listener) => void session.onReturn(listener) };
});
