// Where the server is and how we connect to it: an address, or the user's own pool. Nothing secret in it is ever shown:
// people see the address without its password.
import { defaultOf, SETTINGS } from "../../engine/settings.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";

/**
 * The part of a `pg` pool that is used: the store's queries run on it, and its options configure the one session next
 * to it.
 */
export interface PostgresPool {
  /** A connection of the pool, as in `pg`. */
  // oxlint-disable-next-line typescript/no-explicit-any -- a client of `pg`; its types are the user's to have
  connect(): Promise<any>;
  /** What the pool was made of. */
  readonly options: object;
}

/** The options of the store. */
export interface PostgresOptions {
  /** The schema with Outlive's tables. Default "outlive"; at most 40 lowercase letters, digits and underscores, the first not a digit. */
  readonly schema?: string;
  /** Your own `pg` pool. The engine queries through it and does not close it. Maintenance opens its own connections with the pool's options. Default: a pool of its own. */
  readonly pool?: PostgresPool;
  /** The maximum number of connections in this process's own pool; its maintenance thread opens up to four more. Commits leave one connection free, so use at least 2. Default 4; from 1 to 50; not together with `postgres.pool`. */
  readonly connections?: number;
}

/** The settings of a `pg` client. Plain data unless they come from the user's own pool. */
export type ClientSettings = Readonly<Record<string, unknown>>;

export interface Address {
  readonly schema: string;
  readonly client: ClientSettings;
  readonly pool: PostgresPool | null;
  readonly connections: number;
  /** What people may see: host and database, never a password. */
  readonly shown: string;
}

/** How long connecting may take. */
const CONNECT_MS = 5_000;

export function addressOf(url: string, options: PostgresOptions = {}): Address {
  const { schema = defaultOf("postgres.schema"), pool = null } = options;
  const { connections = defaultOf("postgres.connections") } = options;
  quotedSchema(schema);
  const shown = shownAddress(url);
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    // The parser's error contains the whole address, so it is not passed on as the cause.
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${shown} is not an address.`,
      'Write "postgres://user:password@host:5432/database", with special characters of the password percent-encoded.',
      { url: shown },
    );
  }
  if (pool && (parsed.host !== "" || parsed.pathname.length > 1))
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `Both the address ${shown} and \`postgres.pool\` say where the server is.`,
      'With a pool of your own the address is "postgres:".',
      { url: shown },
    );
  const common = { application_name: "outlive", keepAlive: true, connectionTimeoutMillis: CONNECT_MS };
  const client = pool ? ofPool(pool) : { ...common, connectionString: url };
  return { schema, client, pool, connections, shown };
}

/** The pool's options without what makes it a pool. */
function ofPool({ options }: PostgresPool): ClientSettings {
  const { max: _, min: __, idleTimeoutMillis: ___, maxUses: ____, ...client } = options as Record<string, unknown>;
  // A pool hides its secrets from enumeration, so these two are read by name.
  const { password, ssl } = options as { password?: unknown; ssl?: unknown };
  const key = typeof ssl === "object" && ssl !== null ? (ssl as { key?: unknown }).key : undefined;
  return {
    application_name: "outlive",
    keepAlive: true,
    ...client,
    connectionTimeoutMillis: CONNECT_MS,
    ...(password === undefined ? {} : { password }),
    ...(key === undefined ? {} : { ssl: { ...(ssl as object), key } }),
  };
}

/** Whether these settings can be passed to a thread. A function (a password callback, a custom stream) can't. */
export function canBeCopied(client: ClientSettings): boolean {
  try {
    structuredClone(client);
    return true;
  } catch {
    return false;
  }
}

/** The address without its password, however badly it is written. */
export function shownAddress(url: string): string {
  return String(url)
    .replace(/^([a-z][a-z\d+.-]*:\/\/[^:@/]*):.*@/is, "$1:[redacted]@")
    .replaceAll(/([?&]password=)[^&]*/gi, "$1[redacted]");
}

// The name of our schema. It is checked here, once, before any of it reaches SQL.

const { pattern, form } = SETTINGS["postgres.schema"];

/** The schema's name, quoted for SQL; throws if it is invalid. */
export function quotedSchema(name: string): string {
  if (pattern.test(name)) return `"${name}"`;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${JSON.stringify(name)} can't be the name of Outlive's schema.`,
    `Use ${form}.`,
    { schema: name },
  );
}

/** The channel on which workers of this schema are woken. */
export function wakeupChannel(name: string): string {
  return `${name}_bell`;
}
