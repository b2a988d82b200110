// A client of the user's own as the source of connections: its options are used, as far as they are data, and not its connection. Threads are given
// them, too. `nodeRedis`, `ioredis` and `iovalkey` say whose client it is; without them it is seen from the client, and one of iovalkey counts as
// one of ioredis if that is installed.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { WireAddress } from "./driver.ts";

/** The part of a client of these libraries that is read. */
export interface RedisClientLike {
  /** What it was made with. */
  readonly options?: unknown;
  /** Identifies a client; it is never called. */
  duplicate(): unknown;
}

/** What an adapter returns, for `redis.client`. */
export interface AdaptedClient extends RedisClientLike {
  /** The package that makes the connections. */
  readonly by: "@redis/client" | "ioredis" | "iovalkey";
}

const adapted = (by: AdaptedClient["by"], client: RedisClientLike): AdaptedClient => {
  ofClient(client);
  return { by, options: client.options, duplicate: () => client.duplicate() };
};

/** Connections by `@redis/client`, with the options of your client of `redis` or `@redis/client`. */
export const nodeRedis = (client: RedisClientLike): AdaptedClient => adapted("@redis/client", client);

/** Connections by `ioredis`, with the options of your client. */
export const ioredis = (client: RedisClientLike): AdaptedClient => adapted("ioredis", client);

/** Connections by `iovalkey`, with the options of your client. */
export const iovalkey = (client: RedisClientLike): AdaptedClient => adapted("iovalkey", client);

export function ofClient(client: RedisClientLike): Pick<WireAddress, "by" | "options"> {
  const { options, status, nodes, by } = client as Partial<AdaptedClient> & {
    readonly status?: unknown;
    readonly nodes?: unknown;
  };
  const refused = (what: string, hint: string): OutliveError =>
    new OutliveError(ErrorCode.optionInvalid, `redis.client ${what}.`, hint);
  if (nodes !== undefined || typeof options !== "object" || options === null)
    throw refused(
      "is not a client of one server",
      "A store is in one slot of a cluster: pass no client, and the address redis+cluster://host:6379.",
    );
  const plain = data(options) as Readonly<Record<string, unknown>>;
  if (typeof plain["keyPrefix"] === "string" && plain["keyPrefix"] !== "")
    throw refused("has a keyPrefix", "Pass a client without one, and name the store in its address: ?store=NAME.");
  // A node-redis client has no status, and connects with one string or with what it made of it.
  const whose = by ?? (typeof status === "string" ? "ioredis" : "@redis/client");
  if (whose !== "@redis/client") return { by: whose, options: plain };
  const { url: _, credentialsProvider: __, commandsQueueMaxLength: ___, ...rest } = plain;
  return { options: rest };
}

function data(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(data);
  if (value instanceof Uint8Array || typeof value !== "object" || value === null)
    return typeof value === "function" ? undefined : value;
  const kept = Object.entries(value).map(([key, member]) => [key, data(member)] as const);
  return Object.fromEntries(kept.filter(([, member]) => member !== undefined));
}
