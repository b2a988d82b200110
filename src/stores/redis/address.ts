// Where the server is and which store on it is meant. Nothing secret in it is ever shown.
import { defaultOf } from "../../engine/settings.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { ofClient, type RedisClientLike } from "./clients.ts";
import type { WireAddress } from "./driver.ts";
import type { HostPort } from "./find-primary.ts";

/** The options of the Redis store. */
export interface RedisOptions {
  /** "server": acknowledged writes are as durable as the server's own settings make them. "fsync": they also survive a power loss of the server; `open` rejects unless its `appendfsync` is `always`, or is `everysec` and its `WAITAOF` passes a test. Default "server". */
  readonly durability?: "server" | "fsync";
  /** How many replicas must have a write before it is acknowledged. `open` rejects if fewer are connected. Default 0; from 0 to 10. */
  readonly replicas?: number;
  /** Your own client of `@redis/client`, `redis`, `ioredis` or `iovalkey`. The engine opens its own connections with the client's options, as far as these are plain data; it neither uses nor closes the client itself. Default: a client of `@redis/client`, with the store's address. */
  readonly client?: RedisClientLike;
}

/** What is promised beyond what the server's own settings say (durability.ts). */
export interface RedisPromise {
  readonly durability: "server" | "fsync";
  /** In how many replicas a write must be before it is acknowledged. */
  readonly replicas: number;
  /** How long replicas may take to confirm a write. */
  readonly confirmMs: number;
}

/** All of it is plain data: a thread can be given it. */
export interface RedisAddress {
  readonly name: string;
  readonly wire: WireAddress;
  readonly promise: RedisPromise;
  /** What people may see: never a password. */
  readonly shown: string;
}

const CONFIRM_MS = 5_000;
const NAME = /^[a-z0-9][a-z0-9_-]{0,39}$/;

/**
 * The store's name is `?store=NAME` in its address, "outlive" by default: all its keys are kept together as `o:{NAME}:...`. Sentinels and nodes of
 * a cluster are listed with commas: `redis+sentinel://user:password@one:26379,two:26379/NAME`, `redis+cluster://one:6379,two:6379`.
 */
export function redisAddress(url: string, options: RedisOptions = {}): RedisAddress {
  const shown = shownRedis(url);
  const several = /^(rediss?)\+(sentinel|cluster):\/\/(?:(.*)@)?([^/?]*)(\/[^?]*)?(\?.*)?$/is.exec(url);
  const [, scheme = "", how = "", who = "", list = "", path = "", query = ""] = several ?? [];
  let parsed: URL;
  let nodes: readonly HostPort[];
  try {
    nodes = several ? list.split(",").map((text) => hostPort(text, how === "sentinel" ? 26_379 : 6_379)) : [];
    const first = nodes[0];
    parsed = new URL(first ? `${scheme}://${who === "" ? "" : `${who}@`}${first.host}:${first.port}${query}` : url);
  } catch {
    // The parser's error contains the whole address, so it is not passed on as the cause.
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${shown} is not an address.`,
      'Write "redis://user:password@host:6379", or "rediss://..." for TLS, with special characters of the password percent-encoded.',
      { url: shown },
    );
  }
  const name = parsed.searchParams.get("store") ?? "outlive";
  const password = parsed.searchParams.get("sentinelPassword");
  const primary = decodeURIComponent(path.slice(1));
  if (!NAME.test(name))
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${JSON.stringify(name)} can't be the name of a Redis store.`,
      "Use at most 40 lowercase letters, digits, _ and -, the first a letter or a digit.",
      { name },
    );
  if (how === "sentinel" && primary === "")
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${shown} does not say which primary is meant.`,
      "Put the name that the sentinels monitor after the hosts: redis+sentinel://one:26379,two:26379/NAME",
      { url: shown },
    );
  parsed.search = "";
  const { durability = defaultOf("redis.durability"), replicas = defaultOf("redis.replicas"), client } = options;
  const wire = {
    url: parsed.href,
    ...(how === "sentinel" && { sentinel: { name: primary, nodes, password } }),
    ...(how === "cluster" && { nodes }),
    ...(client !== undefined && ofClient(client)),
  };
  return { name, wire, promise: { durability, replicas, confirmMs: CONFIRM_MS }, shown };
}

function hostPort(text: string, port: number): HostPort {
  const { hostname, port: given } = new URL(`redis://${text}`);
  return { host: hostname, port: given === "" ? port : Number(given) };
}

export function shownRedis(url: string): string {
  return String(url)
    .replace(/^([a-z][a-z\d+.-]*:\/\/[^:@/]*):.*@/is, "$1:[redacted]@")
    .replace(/(sentinelPassword=)[^&]*/i, "$1[redacted]");
}
