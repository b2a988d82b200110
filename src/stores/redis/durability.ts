// What is promised beyond what the server's own settings say, checked when the store opens, and refused if it can't be kept. Writes that have to be in
// replicas wait together: another connection writes and waits for the replicas, which covers every write that the server did before.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { RedisAddress, RedisPromise } from "./address.ts";
import { connect, type Reply, type Wire } from "./driver.ts";
import { replyCode } from "./errors.ts";
import { counted } from "../../job/text.ts";

const CALL_MS = 5_000;

/** `WAITAOF` is not used: under `everysec` it returns at once without a flush on Valkey 8.0 and 8.1 (measured), and on Redis 7.4 before February 2025. */
export async function assertKeeps(wire: Wire, promise: RedisPromise): Promise<void> {
  if (promise.durability === "fsync") await assertFlushes(wire);
  if (promise.replicas > 0) await assertReplicas(wire, promise.replicas);
}

async function assertFlushes(wire: Wire): Promise<void> {
  const setting = async (name: string): Promise<string> => {
    const reply = await allowed(wire, ["CONFIG", "GET", name], "CONFIG");
    // RESP3 returns a map, RESP2 a flat list.
    return String(Array.isArray(reply) ? reply[1] : (reply as unknown as Record<string, string>)[name]);
  };
  const found = {
    appendonly: await setting("appendonly"),
    appendfsync: await setting("appendfsync"),
    "no-appendfsync-on-rewrite": await setting("no-appendfsync-on-rewrite"),
  };
  const needed = { appendonly: "yes", appendfsync: "always", "no-appendfsync-on-rewrite": "no" };
  for (const [name, value] of Object.entries(needed)) {
    const has = found[name as keyof typeof found];
    if (has !== value)
      throw notKept(
        `redis.durability is "fsync", and the server's ${name} is ${has}: a power loss may take what was acknowledged.`,
        `Set \`${name} ${value}\` on the server, or remove redis.durability.`,
      );
  }
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

/** Confirms writes, many at once. */
export class Replicas {
  readonly #address: RedisAddress;
  readonly #key: string;
  #wire: Promise<Wire> | null = null;
  #waiting: Waiting[] = [];
  #underWay = false;

  constructor(address: RedisAddress, tag: string) {
    this.#address = address;
    this.#key = `${tag}sync`;
  }

  /** Resolves when every write that the server has done until now is in as many replicas as promised. */
  confirmed(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      if (!this.#underWay) void this.#run();
    });
  }

  /** Another server may be at the address. */
  reset(): void {
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

  async #round(): Promise<void> {
    const { replicas, confirmMs } = this.#address.promise;
    this.#wire ??= connect(this.#address.wire);
    let confirmed: Reply;
    try {
      const wire = await this.#wire;
      await wire.call(["INCR", this.#key], CALL_MS);
      confirmed = await wire.call(["WAIT", String(replicas), String(confirmMs)], confirmMs + CALL_MS);
    } catch (thrown) {
      this.reset();
      throw thrown;
    }
    if (Number(confirmed) >= replicas) return;
    throw new OutliveError(
      ErrorCode.storeUnreachable,
      `The write was done, but only ${String(confirmed)} of ${counted(replicas, "replica")} confirmed it within ${confirmMs} ms.`,
      "It is lost if the server fails before its replicas have it. Check the replicas; repeating the call is harmless.",
      { confirmed, replicas },
    );
  }
}
