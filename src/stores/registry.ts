// The stores, one row each: which addresses select it, and how it is opened, migrated, examined and shown. No other
// file decides which store an address selects. A store's code, and with it its driver, is loaded only when used: half
// of what a worker loads is its store.
import { tmpdir } from "node:os";
import { dirname } from "node:path";
import type { EngineOptions } from "../engine/options.ts";
import { DEFAULT_STORE, defaultOf, type StoreName } from "../engine/settings.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { Clock, Random } from "../job/time.ts";
import {
  type Backend,
  type PrintedSql,
  readOnlyBackend,
  type StartUpOptions,
  type StoreMigrations,
} from "./backend.ts";
import type { StoreDoctor } from "./store-parts.ts";
import type { Store } from "./port.ts";
import { addressOf, shownAddress } from "./postgres/address.ts";
import { type RedisAddress, redisAddress } from "./redis/address.ts";
import { sqlitePath } from "./sqlite/address.ts";

export { shownAddress, type StoreName };

export interface BackendDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly bootId: string;
  /** How long a worker's session may be missing before contact with it is lost. Default: `heartbeat.contact`. */
  readonly contactMs?: number;
}

export type StoreOptions = Pick<EngineOptions, "durability" | "sqlite" | "postgres" | "redis" | "liveness">;

export interface OpenKind {
  /** False: the store must exist and have this version. */
  readonly migrate: boolean;
  readonly startUp: StartUpOptions;
  readonly readOnly: boolean;
}

type ClientDeps = Pick<BackendDeps, "clock" | "random">;

export interface ClientStore {
  /** Stores with the same key can share one connection; null: not shareable. */
  readonly key: string | null;
  /** For clients: the store alone. */
  readonly open: (deps: ClientDeps) => Promise<Store>;
}

/** One store. Every function takes an address that `matches`. */
export interface StoreRow {
  readonly name: StoreName;
  /** The reason as a sentence, for people. */
  readonly title: string;
  /** Addresses as people write them. */
  readonly examples: readonly string[];
  readonly matches: (url: string) => boolean;
  /** Whether the user's own rows can be written in its transactions: `commit` and `transaction`. */
  readonly commits: boolean;
  /** Only the process that opens it can reach the data. */
  isPrivate(url: string): boolean;
  /**
   * For stores that are files: the folder of the file, and the address of another file. Absent: a server keeps the
   * data.
   */
  readonly files?: { folderOf(url: string): string; addressOf(path: string): string };
  /** Opens the store with everything that belongs to it. */
  open(url: string, options: StoreOptions, deps: BackendDeps, kind: OpenKind): Promise<Backend>;
  client(url: string, options: StoreOptions): ClientStore;
  /** Opens nothing until one of its functions is called. */
  migrations(url: string, options: StoreOptions): Promise<StoreMigrations>;
  /**
   * Checks and repairs a store that can't be opened. Absent: the server's own tools repair it. Null: there is nothing
   * to repair at this address.
   */
  readonly doctor?: (url: string) => Promise<StoreDoctor | null>;
}

const MEMORY = ":memory:";

const SQLITE: StoreRow = {
  name: "sqlite",
  title: "SQLite",
  examples: ["sqlite:./jobs.db", "sqlite::memory:"],
  matches: (url) => url.startsWith("sqlite:"),
  commits: true,
  isPrivate: (url) => sqlitePath(url) === MEMORY,
  files: {
    folderOf(url) {
      const path = sqlitePath(url);
      return path === MEMORY ? tmpdir() : dirname(path);
    },
    addressOf: (path) => `sqlite:${path}`,
  },
  async open(url, options, deps, { migrate, startUp, readOnly }) {
    const { openSqlite } = await import("./sqlite/open.ts");
    const settings = { ...sqliteOptions(url, options), mustExist: !migrate, readOnly };
    return openSqlite(deps, settings, { migrate, ...(migrate && { startUp }) });
  },
  client(url, options) {
    const settings = sqliteOptions(url, options);
    return {
      key: JSON.stringify(settings),
      async open(deps) {
        const { openSqliteClient } = await import("./sqlite/open.ts");
        return openSqliteClient(deps, settings);
      },
    };
  },
  async migrations(url, options) {
    const { fileMigrations } = await import("./sqlite/migrate.ts");
    return fileMigrations(url, sqliteOptions(url, options));
  },
  async doctor(url) {
    const path = sqlitePath(url);
    if (path === MEMORY) return null;
    const { fileDoctor } = await import("./sqlite/doctor/index.ts");
    return fileDoctor(path);
  },
};

const POSTGRES: StoreRow = {
  name: "postgres",
  title: "PostgreSQL",
  examples: ["postgres://user:password@host/database"],
  matches: (url) => /^postgres(ql)?:/.test(url),
  commits: true,
  isPrivate: () => false,
  async open(url, { durability = defaultOf("durability"), postgres, redis, liveness }, deps) {
    const { openPostgres } = await import("./postgres/open.ts");
    const pulse = liveness === undefined || liveness === "none" ? null : await pulseAt(liveness, redis);
    return openPostgres(deps, addressOf(url, postgres), { durability }, pulse);
  },
  client(url, { durability = defaultOf("durability"), postgres }) {
    const address = addressOf(url, postgres);
    const { pool, client, schema, connections } = address;
    return {
      key: pool ? null : JSON.stringify({ client, schema, connections, durability }),
      async open(deps) {
        const { openPostgresClient } = await import("./postgres/open.ts");
        return openPostgresClient(deps, address, { durability });
      },
    };
  },
  async migrations(url, { postgres }) {
    const { schemaMigrations } = await import("./postgres/migrate.ts");
    return schemaMigrations(addressOf(url, postgres));
  },
};

async function pulseAt(url: string, options: StoreOptions["redis"]): Promise<RedisAddress> {
  const { pulseAddress } = await import("./redis/pulse.ts");
  return pulseAddress(redisAddress(url, options));
}

const REDIS: StoreRow = {
  name: "redis",
  title: "Redis",
  examples: ["redis://user:password@host:6379"],
  matches: (url) => /^rediss?(\+sentinel|\+cluster)?:/.test(url),
  commits: false,
  isPrivate: () => false,
  async open(url, { redis }, deps) {
    const { openRedis } = await import("./redis/open.ts");
    return openRedis(deps, redisAddress(url, redis));
  },
  client(url, { redis }) {
    const address = redisAddress(url, redis);
    return {
      key: redis?.client ? null : JSON.stringify({ ...address.wire, ...address.promise, name: address.name }),
      async open(deps) {
        const { openRedisClient } = await import("./redis/open.ts");
        return openRedisClient(deps, address);
      },
    };
  },
  async migrations(url) {
    const { layoutOf } = await import("./redis/migrate.ts");
    return layoutOf(redisAddress(url));
  },
  async doctor(url) {
    const { redisDoctor } = await import("./redis/integrity.ts");
    return redisDoctor(redisAddress(url));
  },
};

export const STORES: readonly StoreRow[] = [SQLITE, POSTGRES, REDIS];

/** The row of the store at this address. The only place that refuses an address which no store matches. */
export function storeAt(url: string): StoreRow {
  const row = typeof url === "string" ? STORES.find((store) => store.matches(url)) : undefined;
  if (row) return row;
  const shown = typeof url === "string" ? shownAddress(url) : url;
  const examples = STORES.flatMap((store) => store.examples).map((example) => JSON.stringify(example));
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${JSON.stringify(shown)} is not the address of a store.`,
    `Use ${examples.slice(0, -1).join(", ")} or ${examples.at(-1)}.`,
    { url: shown },
  );
}

/** Which store's defaults apply at this address, even if no store matches it: that error is reported elsewhere. */
export function defaultsAt(url: unknown): StoreName {
  return (typeof url === "string" && STORES.find((store) => store.matches(url))?.name) || DEFAULT_STORE;
}

/**
 * Opens the store with everything that belongs to it. Without `migrate` it must exist and have this version; a server's
 * schema must always exist.
 */
export async function openBackend(
  url: string,
  options: StoreOptions,
  deps: BackendDeps,
  kind: OpenKind,
): Promise<Backend> {
  assertNode();
  const row = storeAt(url);
  assertLivenessFits(row, options);
  const backend = await row.open(url, options, deps, kind);
  return kind.readOnly ? readOnlyBackend(backend) : backend;
}

function assertLivenessFits({ name, title }: StoreRow, { liveness = "none" }: StoreOptions): void {
  if (name === "postgres" || liveness === "none") return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `\`liveness\` is ${shownAddress(liveness)}, and a ${title} store has a proof of life of its own.`,
    "Remove `liveness`: it is for a PostgreSQL store behind a pooler.",
  );
}

const LEAST_NODE = 24;

/** What is missing in older ones fails later, and far from its cause: SQLite is not built in, for instance. */
export function assertNode(version: string = process.versions.node): void {
  if (Number(version.split(".", 1)[0]) >= LEAST_NODE) return;
  throw new OutliveError(
    ErrorCode.storeUnusable,
    `Outlive needs Node 24.16 or newer, and this is Node ${version}.`,
    "Install a newer Node. Nothing was opened.",
    { node: version },
  );
}

/** The tables of the store at this address. */
export function migrationsOf(url: string, options: StoreOptions = {}): Promise<StoreMigrations> {
  return storeAt(url).migrations(url, options);
}

/** The SQL of the tables of a PostgreSQL store, to read and to run with psql. Connects to no server. */
export async function printedSql(schema: string, what: PrintedSql): Promise<string> {
  const { printedSql: print } = await import("./postgres/migrate.ts");
  return print(schema, what);
}

function sqliteOptions(url: string, { durability = defaultOf("durability"), sqlite = {} }: StoreOptions) {
  return {
    path: sqlitePath(url),
    durability,
    allowUnsafeSqlite: sqlite.allowUnsafe ?? defaultOf("sqlite.allowUnsafe"),
    allowNetworkFilesystem: sqlite.allowNetworkFilesystem ?? defaultOf("sqlite.allowNetworkFilesystem"),
  };
}
