// Where the server is and which store on it is meant. Nothing secret in it is ever shown.
import { defaultOf } from "../../engine/settings.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { WireAddress } from "./driver.ts";

/** The options of the Redis store. */
export interface RedisOptions {
  /** "server": what was acknowledged survives what the server's settings let survive. "fsync": a power loss of the server, too; refused at `open` unless its `appendfsync` is `always`. Default "server". */
  readonly durability?: "server" | "fsync";
  /** In how many replicas a write must be before it is acknowledged; refused at `open` if fewer are connected. Default 0; at most 10. */
  readonly replicas?: number;
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

/** The store's name is `?store=NAME` in its address, "outlive" by default: all its keys are kept together as `o:{NAME}:...`. */
export function redisAddress(url: string, options: RedisOptions = {}): RedisAddress {
  const shown = shownRedis(url);
  let parsed: URL;
  try {
    parsed = new URL(url);
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
  if (!NAME.test(name))
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${JSON.stringify(name)} can't be the name of a Redis store.`,
      "Use at most 40 lowercase letters, digits, _ and -, the first a letter or a digit.",
      { name },
    );
  parsed.search = "";
  const { durability = defaultOf("redis.durability"), replicas = defaultOf("redis.replicas") } = options;
  const promise = { durability, replicas, confirmMs: CONFIRM_MS };
  return { name, wire: { url: parsed.href }, promise, shown };
}

export function shownRedis(url: string): string {
  return String(url).replace(/^([a-z][a-z\d+.-]*:\/\/[^:@/]*):.*@/is, "$1:[redacted]@");
}
