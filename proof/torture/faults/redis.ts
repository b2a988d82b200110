// A Redis server of the rig's own that flushes every write before it replies, and what is done to it: killed, stopped and started, frozen, out of memory, and
// replaced by its replica.
import { cpSync } from "node:fs";
import { type AddressInfo, connect as connectTo, createServer, type Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { atEnd } from "../../../src/torture/run.ts";
import { connect } from "../../../src/stores/redis/driver.ts";
import { RedisServer } from "../../servers/redis-server.ts";
import type { Fault } from "../processes/fault-schedule.ts";
import { HELD_BACK_MS } from "./proxy.ts";

export interface TorturedRedis {
  readonly url: string;
  readonly faults: readonly Fault[];
  /** Stops it, copies what it holds, and says how that is started. */
  copyTo(folder: string): Promise<void>;
}

export async function startRedis(): Promise<TorturedRedis> {
  const pair = await Pair.start();
  return {
    url: pair.url,
    faults: [...faultsOf(pair, "Server", "the server"), fillMemory(pair), pair.failOver],
    async copyTo(folder) {
      const { primary } = pair;
      await primary.stop();
      const kept = join(folder, "redis");
      cpSync(primary.folder, kept, { recursive: true });
      process.stderr.write(`The store is in ${kept}: redis-server --dir ${kept} --appendonly yes\n`);
    },
  };
}

/** A primary and its replica, behind one address that leads to the primary, as a managed service has it. */
class Pair {
  primary: RedisServer;
  #replica: RedisServer;
  readonly #sockets = new Set<Socket>();
  url = "";

  private constructor(primary: RedisServer, replica: RedisServer) {
    this.primary = primary;
    this.#replica = replica;
  }

  static async start(): Promise<Pair> {
    const [primary, replica] = [
      await RedisServer.create({ fsync: "always" }),
      await RedisServer.create({ fsync: "always" }),
    ] as const;
    for (const one of [primary, replica]) atEnd(() => one.destroyNow());
    const pair = new Pair(primary, replica);
    const door = createServer((client) => pair.#accept(client));
    await new Promise<void>((resolve) => door.listen(0, "127.0.0.1", resolve));
    door.unref();
    atEnd(() => door.close());
    pair.url = `redis://127.0.0.1:${(door.address() as AddressInfo).port}`;
    await command(replica, "REPLICAOF", "127.0.0.1", String(primary.port));
    return pair;
  }

  get failOver(): Fault {
    return {
      key: "failOver",
      name: "let the replica take the place of the server",
      aftermathMs: HELD_BACK_MS,
      strike: (_, signal) => this.#failOver(signal),
    };
  }

  /**
   * The server holds writes back until its replica has all of them, so nothing may be lost. A replica that does not catch up in time, because the server was
   * killed just before, stays one.
   */
  async #failOver(signal: AbortSignal): Promise<void> {
    const [before, after] = [this.primary, this.#replica];
    const args = ["TO", "127.0.0.1", String(after.port), "TIMEOUT", "10000"];
    for (let tries = 0; tries < 100 && !signal.aborted; tries++) {
      const role = String(await command(after, "INFO", "replication"));
      if (/master_link_status:up/.test(role)) break;
      await wait(100, signal);
    }
    await command(before, "FAILOVER", ...args).catch(() => {});
    while (/master_failover_state:(?!no-failover)/.test(String(await command(before, "INFO", "replication"))))
      await wait(20, signal);
    if (!/role:master/.test(String(await command(after, "INFO", "replication")))) return;
    [this.primary, this.#replica] = [after, before];
    for (const socket of this.#sockets) socket.destroy();
  }

  #accept(client: Socket): void {
    const server = connectTo({ host: "127.0.0.1", port: this.primary.port });
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const) {
      this.#sockets.add(one);
      one.setNoDelay(true);
      one.on("error", () => one.destroy());
      one.on("close", () => {
        this.#sockets.delete(one);
        other.destroy();
      });
      one.pipe(other);
    }
  }
}

async function command(server: RedisServer, ...args: readonly string[]): Promise<unknown> {
  const wire = await connect({ url: server.url() });
  try {
    return await wire.call(args, CALL_MS);
  } finally {
    wire.close();
  }
}

/** The server of the workers' liveness, where their jobs are on PostgreSQL. It keeps nothing, so each start is an empty one. */
export async function startPulse(): Promise<{ readonly url: string; readonly faults: readonly Fault[] }> {
  const server = await RedisServer.create();
  atEnd(() => server.destroyNow());
  return { url: server.url(), faults: faultsOf({ primary: server }, "Pulse", "the Redis server of the liveness") };
}

async function wait(ms: number, signal: AbortSignal): Promise<void> {
  await pause(ms, undefined, { signal }).catch(() => {});
}

/** What can be done to whatever server is the primary at that time. */
function faultsOf(of: { readonly primary: RedisServer }, key: string, what: string): readonly Fault[] {
  const restarting = (name: string, text: string, end: (server: RedisServer) => Promise<void>): Fault => ({
    key: `${name}${key}`,
    name: text,
    aftermathMs: HELD_BACK_MS,
    async strike(chance, signal) {
      const server = of.primary;
      await end(server);
      await wait(chance.whole(0, 1_000), signal);
      await server.start();
    },
  });
  return [
    restarting("kill", `kill ${what} with SIGKILL and start it again`, (server) => server.kill()),
    restarting("stop", `stop ${what} and start it again`, (server) => server.stop()),
    {
      key: `freeze${key}`,
      name: `freeze ${what}`,
      aftermathMs: HELD_BACK_MS,
      async strike(chance, signal) {
        const server = of.primary;
        server.freeze();
        await wait(chance.whole(200, 3_000), signal);
        server.thaw();
      },
    },
  ];
}

/** Nothing new is taken meanwhile; what runs ends. */
function fillMemory(of: { readonly primary: RedisServer }): Fault {
  return {
    key: "fillMemory",
    name: "let the server's memory be full",
    aftermathMs: 0,
    async strike(chance, signal) {
      const server = of.primary;
      await command(server, "CONFIG", "SET", "maxmemory", "1mb");
      await wait(chance.whole(200, 2_000), signal);
      await command(server, "CONFIG", "SET", "maxmemory", "0");
    },
  };
}

const CALL_MS = 20_000;
