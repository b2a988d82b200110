// What a client needs of the PostgreSQL store: the store alone, on a schema that is there already. No migration, no recovery, no
// thread, no lock.
import type { Clock, Random } from "../../core/clock.ts";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { idSource } from "../../core/ids.ts";
import type { Address } from "./address.ts";
import { Bell } from "./bell.ts";
import { Connection } from "./connection.ts";
import { openingError } from "./errors.ts";
import { assertMigrated } from "./migrate.ts";
import { type ServerClock, serverClock } from "./server-clock.ts";
import { PostgresStore } from "./store.ts";

export interface StoreSettings {
  readonly durability: "full" | "relaxed";
}

const OLDEST = 14;

export async function openPostgresClient(
  deps: { readonly clock: Clock; readonly random: Random },
  address: Address,
  settings: StoreSettings,
): Promise<PostgresStore> {
  const clock = serverClock(deps.clock);
  const { connection } = await openConnection(address, settings, clock);
  const newId = idSource(deps.clock, deps.random);
  return new PostgresStore({ connection, clock, newId, bell: new Bell(connection, clock) });
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
