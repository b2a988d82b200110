// Which store an address means, and how each is opened. A store's own code, and with it its driver, is loaded only when it is used:
// half of what a worker loads is its store.
import type { EngineOptions } from "./engine/options.ts";
import { defaultOf } from "./engine/settings.ts";
import type { Backend, StartUpOptions } from "./core/backend.ts";
import type { Clock, Random } from "./core/clock.ts";
import { ErrorCode, OutliveError } from "./core/errors.ts";
import type { Emitter } from "./core/events.ts";
import { lookOnly } from "./core/read-only.ts";
import type { Store } from "./core/store.ts";
import { addressOf, shownAddress } from "./stores/postgres/address.ts";
import { sqlitePath } from "./stores/sqlite/address.ts";

export { shownAddress };

export type StoreName = "sqlite" | "postgres";

export interface BackendDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly bootId: string;
  /** How long a worker's session may be missing before contact with it is lost. Default: that of `heartbeat.contact`. */
  readonly contactMs?: number;
}

export type StoreOptions = Pick<EngineOptions, "durability" | "sqlite" | "postgres">;

export function isPostgres(url: unknown): boolean {
  return typeof url === "string" && /^postgres(ql)?:/.test(url);
}

/** By the scheme of the address; what is none is refused here, once. */
export function storeNameOf(url: string): StoreName {
  if (typeof url === "string" && url.startsWith("sqlite:")) return "sqlite";
  if (isPostgres(url)) return "postgres";
  const shown = typeof url === "string" ? shownAddress(url) : url;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${JSON.stringify(shown)} is not the address of a store.`,
    'Use "sqlite:./jobs.db", "sqlite::memory:" or "postgres://user:password@host/database".',
    { url: shown },
  );
}

export interface OpenKind {
  /** Without it the store must be there and of this version. */
  readonly migrate: boolean;
  readonly startUp: StartUpOptions;
  readonly readOnly: boolean;
}

/** The store with all that belongs to it. Without `migrate`, and on PostgreSQL in every case, it must be there and of this version. */
export async function openBackend(
  url: string,
  options: StoreOptions,
  deps: BackendDeps,
  { migrate, startUp, readOnly }: OpenKind,
): Promise<Backend> {
  const backend = await openStore(url, options, deps, { migrate, startUp, readOnly });
  return readOnly ? lookOnly(backend) : backend;
}

async function openStore(
  url: string,
  options: StoreOptions,
  deps: BackendDeps,
  { migrate, startUp, readOnly }: OpenKind,
): Promise<Backend> {
  if (storeNameOf(url) === "postgres") {
    const { openPostgres } = await import("./stores/postgres/open.ts");
    return openPostgres(deps, addressOf(url, options.postgres), {
      durability: options.durability ?? defaultOf("durability"),
    });
  }
  const sqlite = { ...sqliteOptions(url, options), mustExist: !migrate, readOnly };
  const { openSqlite } = await import("./stores/sqlite/open.ts");
  return openSqlite(deps, sqlite, { migrate, ...(migrate && { startUp }) });
}

interface ClientDeps {
  readonly clock: Clock;
  readonly random: Random;
}

/** For clients: the store alone. `key` is the same for what can share one connection; null: nobody can. */
export function clientStore(
  url: string,
  options: StoreOptions,
): { readonly key: string | null; readonly open: (deps: ClientDeps) => Promise<Store> } {
  if (storeNameOf(url) === "postgres") {
    const address = addressOf(url, options.postgres);
    const durability = options.durability ?? defaultOf("durability");
    const { pool, client, schema, connections } = address;
    return {
      key: pool ? null : JSON.stringify({ client, schema, connections, durability }),
      open: async (deps) => {
        const { openPostgresClient } = await import("./stores/postgres/client.ts");
        return openPostgresClient(deps, address, { durability });
      },
    };
  }
  const settings = sqliteOptions(url, options);
  return {
    key: JSON.stringify(settings),
    open: async (deps) => {
      const { openSqliteClient } = await import("./stores/sqlite/client.ts");
      return openSqliteClient(deps, settings);
    },
  };
}

/** Creates the SQLite file at this address, or brings its tables up to date. Recovers nothing. */
export async function createFile(url: string, options: StoreOptions, deps: ClientDeps): Promise<void> {
  const { createSqlite } = await import("./stores/sqlite/create.ts");
  await createSqlite(deps, sqliteOptions(url, options));
}

function sqliteOptions(url: string, { durability = defaultOf("durability"), sqlite = {} }: StoreOptions) {
  return {
    path: sqlitePath(url),
    durability,
    allowUnsafeSqlite: sqlite.allowUnsafe ?? defaultOf("sqlite.allowUnsafe"),
    allowNetworkFilesystem: sqlite.allowNetworkFilesystem ?? defaultOf("sqlite.allowNetworkFilesystem"),
  };
}
