// Which store an address means, and how each is opened. A store's own code, and with it its driver, is loaded only when it is used.
import type { EngineOptions } from "./config.ts";
import type { Backend, StartUpOptions } from "./core/backend.ts";
import type { Clock, Random } from "./core/clock.ts";
import { ErrorCode, OutliveError } from "./core/errors.ts";
import type { Emitter } from "./core/events.ts";
import { lookOnly } from "./core/read-only.ts";
import type { Store } from "./core/store.ts";
import { openSqliteClient, sqlitePath } from "./stores/sqlite/client.ts";
import { openSqlite } from "./stores/sqlite/open.ts";

export type StoreName = "sqlite" | "postgres";

export interface BackendDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly bootId: string;
}

type StoreOptions = Pick<EngineOptions, "durability" | "sqlite">;

/** By the scheme of the address; what is none is refused here, once. */
export function storeNameOf(url: string): StoreName {
  if (typeof url === "string" && url.startsWith("sqlite:")) return "sqlite";
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${JSON.stringify(url)} is not the address of a store.`,
    'Use "sqlite:./jobs.db" or "sqlite::memory:".',
    { url },
  );
}

export interface OpenKind {
  /** Without it the store must be there and of this version. */
  readonly migrate: boolean;
  readonly startUp: StartUpOptions;
  readonly readOnly: boolean;
}

/** The store with all that belongs to it. */
export async function openBackend(
  url: string,
  options: StoreOptions,
  deps: BackendDeps,
  { migrate, startUp, readOnly }: OpenKind,
): Promise<Backend> {
  storeNameOf(url);
  const sqlite = { ...sqliteOptions(url, options), mustExist: !migrate, readOnly };
  const backend = await openSqlite(deps, sqlite, { migrate, ...(migrate && { startUp }) });
  return readOnly ? lookOnly(backend) : backend;
}

/** For clients: the store alone. `key` is the same for what can share one connection. */
export function clientStore(
  url: string,
  options: StoreOptions,
): { readonly key: string; readonly open: (deps: { readonly clock: Clock; readonly random: Random }) => Store } {
  storeNameOf(url);
  const settings = sqliteOptions(url, options);
  return { key: JSON.stringify(settings), open: (deps) => openSqliteClient(deps, settings) };
}

function sqliteOptions(url: string, { durability = "full", sqlite = {} }: StoreOptions) {
  return {
    path: sqlitePath(url),
    durability,
    allowUnsafeSqlite: sqlite.allowUnsafe ?? false,
    allowNetworkFilesystem: sqlite.allowNetworkFilesystem ?? false,
  };
}
