// What is promised beyond what the server's own settings say, checked when the store opens, and refused if it can't be kept. Writes that have to be
// flushed, or to be in replicas, wait together: another connection writes and waits, which covers every write that the server did before. That has to be the
// same server: it writes by a script that only the server knows that took the others, because scripts are neither kept nor replicated.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Clock } from "../../job/time.ts";
import type { RedisAddress } from "./address.ts";
import { connect, type Reply, type Wire } from "./driver.ts";
import { isNoScript, replyCode } from "./errors.ts";
import type { HostPort } from "./find-primary.ts";
import { confirmingWrite, type Script } from "./scripts.ts";
import { counted } from "../../job/text.ts";

type PlainClock = Pick<Clock, "mono" | "after">;

const CALL_MS = 5_000;

/** A server with `everysec` flushes once a second. A WAITAOF that follows another one at once and takes less has not waited for a flush. */
const FLUSH_MS = 700;
/** A round in which a plain command took longer proves nothing: the server was slow, whatever WAITAOF waited for. */
const PROMPT_MS = 150;
const PLAIN_EVERY_MS = 20;
const PROOFS = 2;
const MAX_ROUNDS = 8;

/** How the server is made to flush what it acknowledges: it always does, or each write waits for its next flush. */
async function flushing(wire: Wire): Promise<"always" | "everysec"> {
  const setting = async (name: string): Promise<string> => {
    const reply = await allowed(wire, ["CONFIG", "GET", name], "CONFIG");
    // RESP3 returns a map, RESP2 a flat list.
    return String(Array.isArray(reply) ? reply[1] : (reply as unknown as Record<string, string>)[name]);
  };
  const needed = { appendonly: ["yes"], appendfsync: ["always", "everysec"], "no-appendfsync-on-rewrite": ["no"] };
  for (const [name, values] of Object.entries(needed)) {
    const has = await setting(name);
    if (!values.includes(has)) throw notFlushed(`the server's ${name} is ${has}`, `Set \`${name} ${values[0]!}\``);
  }
  return (await setting("appendfsync")) === "always" ? "always" : "everysec";
}

/**
 * Whether WAITAOF waits for a flush under `everysec`. Measured: Valkey 8.0.1 and 8.1.1 confirm at once what they have not flushed, Redis 8.0.2 waits;
 * Redis 7.4 did not before February 2025, and Redis 7.0 has no WAITAOF. So every server is tested: each of several rounds writes and waits, and an
 * honest server needs about a second for each but the first.
 */
export async function assertWaitsForFlush(
  waiting: Wire,
  other: Wire,
  write: () => Promise<unknown>,
  clock: PlainClock,
): Promise<void> {
  let proofs = 0;
  for (let round = 0; round <= MAX_ROUNDS; round++) {
    const begunAt = clock.mono();
    const flushed = write().then(() => waitForFlush(waiting, CALL_MS));
    const slowestMs = await slowestUntil(flushed, other, clock);
    const tookMs = clock.mono() - begunAt;
    // The first ends with whatever flush comes next.
    if (round === 0 || slowestMs > PROMPT_MS) continue;
    if (!(await flushed) || tookMs < FLUSH_MS)
      throw notFlushed(
        `the server's appendfsync is everysec, and its WAITAOF confirmed a write after ${Math.round(tookMs)} ms without a flush`,
        "Set `appendfsync always`",
      );
    if (++proofs === PROOFS) return;
  }
  throw notFlushed(
    "the server's appendfsync is everysec, and it is too busy to find out whether its WAITAOF waits for a flush",
    "Set `appendfsync always`",
  );
}

/** How long the slowest of the plain commands took that were sent, one after the other, until then. */
async function slowestUntil(end: Promise<unknown>, wire: Wire, clock: PlainClock): Promise<number> {
  let hasEnded = false;
  const ended = end.finally(() => (hasEnded = true));
  let slowestMs = 0;
  const plain = async (): Promise<void> => {
    while (!hasEnded) {
      const sentAt = clock.mono();
      await wire.call(["PING"], CALL_MS);
      slowestMs = Math.max(slowestMs, clock.mono() - sentAt);
      await new Promise<void>((resolve) => clock.after(PLAIN_EVERY_MS, resolve));
    }
  };
  await Promise.all([ended, plain()]);
  return slowestMs;
}

/** Resolves when the latest write of this wire, and with it every one before, is flushed; false: not within `ms`. */
async function waitForFlush(wire: Wire, ms: number): Promise<boolean> {
  let reply: Reply;
  try {
    reply = await wire.call(["WAITAOF", "1", "0", String(ms)], ms + CALL_MS);
  } catch (thrown) {
    if (!/unknown command/i.test(String(thrown))) throw thrown;
    throw notFlushed(
      "the server's appendfsync is everysec, and it has no WAITAOF (Redis and Valkey have it from 7.2 on)",
      "Set `appendfsync always`",
    );
  }
  return Number((reply as readonly Reply[])[0]) >= 1;
}

function notFlushed(why: string, what: string): OutliveError {
  return notKept(
    `redis.durability is "fsync", and ${why}: a power loss may take what was acknowledged.`,
    `${what} on the server, or remove redis.durability.`,
  );
}

async function assertReplicas(wire: Wire, wanted: number): Promise<void> {
  const info = String(await allowed(wire, ["INFO", "replication"], "INFO"));
  const online = [...info.matchAll(/^slave\d+:.*\bstate=online\b/gm)].length;
  if (online < wanted)
    throw notKept(
      `redis.replicas is ${wanted}, and ${counted(online, "replica is", "replicas are")} connected to the server.`,
      "Nothing was written. Start its replicas, or lower redis.replicas.",
    );
}

async function allowed(wire: Wire, args: readonly string[], command: string): Promise<Reply> {
  try {
    return await wire.call(args, CALL_MS);
  } catch (thrown) {
    const code = replyCode(thrown);
    if (code !== "NOPERM" && !/unknown command/i.test(String(thrown))) throw thrown;
    throw notKept(
      `This user may not call ${command}, so whether the server keeps what is promised can't be known.`,
      `Nothing was written. Allow it, or remove redis.durability and redis.replicas.`,
    );
  }
}

function notKept(what: string, hint: string): OutliveError {
  return new OutliveError(ErrorCode.storeUnusable, what, hint);
}

interface Waiting {
  readonly resolve: () => void;
  readonly reject: (thrown: unknown) => void;
}

/** The server that takes the writes, by the wire to it. */
interface Server {
  readonly wire: Wire;
  /** The node of a cluster that it is. */
  readonly moved: HostPort | null;
  /** No other server process knows this one. */
  readonly write: Script;
}

/** Keeps what is promised: checks that the server can, and confirms writes, many at once. */
export class Confirmations {
  readonly #address: RedisAddress;
  readonly #tag: string;
  readonly #clock: PlainClock;
  #server: Server | null = null;
  #wire: Promise<Wire> | null = null;
  #waiting: Waiting[] = [];
  #underWay = false;
  /** Each write waits for a flush. */
  #flushes = false;
  /** The run of the server whose WAITAOF was tested. */
  #tested: string | null = null;

  constructor(address: RedisAddress, tag: string, clock: PlainClock) {
    this.#address = address;
    this.#tag = tag;
    this.#clock = clock;
  }

  /** A new wire, perhaps to another server: rejects unless that keeps what is promised. */
  async check(wire: Wire, run: string, moved: HostPort | null): Promise<void> {
    const { durability, replicas } = this.#address.promise;
    this.lost();
    this.#server = { wire, moved, write: confirmingWrite(run) };
    if (durability === "fsync") {
      this.#flushes = (await flushing(wire)) === "everysec";
      if (this.#flushes && this.#tested !== run) {
        const waiting = await this.#connected();
        await assertWaitsForFlush(waiting, wire, () => this.#write(waiting), this.#clock);
        this.#tested = run;
      }
    }
    if (replicas > 0) await assertReplicas(wire, replicas);
  }

  /** Resolves when every write that the server at the end of this wire has done until now is as durable as promised. */
  async confirmed(wire: Wire): Promise<void> {
    if (!this.#flushes && this.#address.promise.replicas === 0) return;
    if (wire !== this.#server?.wire) throw unconfirmed();
    await new Promise<void>((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      if (!this.#underWay) void this.#run();
    });
  }

  /** The wire to the server is lost. Another one may be at the address, and may not have what waits for its confirmation. */
  lost(): void {
    this.#server = null;
    this.#disconnect();
    for (const { reject } of this.#waiting.splice(0)) reject(unconfirmed());
  }

  #disconnect(): void {
    void this.#wire?.then(
      (wire) => wire.close(),
      () => {},
    );
    this.#wire = null;
  }

  async #run(): Promise<void> {
    this.#underWay = true;
    while (this.#waiting.length > 0) {
      const round = this.#waiting.splice(0);
      try {
        await this.#round();
        for (const { resolve } of round) resolve();
      } catch (thrown) {
        for (const { reject } of round) reject(thrown);
      }
    }
    this.#underWay = false;
  }

  #connected(): Promise<Wire> {
    this.#wire ??= connect(this.#address.wire, this.#server?.moved);
    return this.#wire;
  }

  /** Writes over this wire, on the server that took the other writes; rejects if it leads to another one. */
  async #write(wire: Wire): Promise<void> {
    const server = this.#server;
    if (server === null) throw unconfirmed();
    const { sha, text } = server.write;
    const write = (): Promise<Reply> => wire.call(["EVALSHA", sha, "1", this.#tag], CALL_MS);
    try {
      await write();
    } catch (thrown) {
      if (!isNoScript(thrown)) throw thrown;
      // It is loaded where the other writes went: a server that still does not know it is another one.
      await server.wire.call(["SCRIPT", "LOAD", text], CALL_MS);
      await write().catch((again: unknown) => {
        throw isNoScript(again) ? unconfirmed() : again;
      });
    }
  }

  async #round(): Promise<void> {
    const { replicas, confirmMs } = this.#address.promise;
    let isFlushed = true;
    let confirmed: Reply = replicas;
    try {
      const wire = await this.#connected();
      await this.#write(wire);
      if (this.#flushes) isFlushed = await waitForFlush(wire, confirmMs);
      if (replicas > 0) confirmed = await wire.call(["WAIT", String(replicas), String(confirmMs)], confirmMs + CALL_MS);
    } catch (thrown) {
      this.#disconnect();
      throw thrown;
    }
    if (!isFlushed)
      throw new OutliveError(
        ErrorCode.storeUnreachable,
        `The write was done, but the server did not confirm within ${confirmMs} ms that it is flushed.`,
        "It is lost if the server loses its power before that. Check the server's disk; repeating the call is harmless.",
      );
    if (Number(confirmed) >= replicas) return;
    throw new OutliveError(
      ErrorCode.storeUnreachable,
      `The write was done, but only ${String(confirmed)} of ${counted(replicas, "replica")} confirmed it within ${confirmMs} ms.`,
      "It is lost if the server fails before its replicas have it. Check the replicas; repeating the call is harmless.",
      { confirmed, replicas },
    );
  }
}

function unconfirmed(): OutliveError {
  return new OutliveError(
    ErrorCode.storeUnreachable,
    "The write was done, but the server that did it can't be asked any more to confirm it: its connection was lost, or another server took its place.",
    "The server that is there now may not have it. Repeating the call is harmless.",
  );
}
