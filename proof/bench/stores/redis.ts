// Redis under test: one server of the bench's own, with an append-only file that is flushed every second, as people run it; each place is a store of
// its own on it.
import { readFileSync } from "node:fs";
import { connect } from "../../../src/stores/redis/driver.ts";
import { RedisServer } from "../../servers/redis-server.ts";
import type { Bench } from "../harness.ts";
import type { Filling, TestedStore } from "./tested-store.ts";

export class TestedRedis implements TestedStore {
  readonly name = "redis";
  readonly floorBatch = 50;
  readonly floors = { drain: "redis/drain-floor", enqueue: "redis/enqueue-floor" };
  #server: Promise<RedisServer> | undefined;
  #started: RedisServer | undefined;
  #places = 0;

  async place(): Promise<string> {
    const server = await (this.#server ??= this.#start());
    return `${server.url()}?store=bench-${++this.#places}`;
  }

  /** CPU of the server so far, in ms. */
  async cpuMs(): Promise<number | null> {
    const { pid } = await this.#server!;
    try {
      return Number(readFileSync(`/proc/${pid}/schedstat`, "latin1").split(" ")[0]) / 1e6;
    } catch {
      return null;
    }
  }

  /** Everything goes with the server: one store at a time is large. */
  async drop(url: string): Promise<void> {
    const wire = await connect({ url: new URL(url).href.split("?")[0]! });
    await wire.call(["FLUSHALL"], 60_000);
    wire.close();
  }

  async fill(_bench: Bench, _url: string, _filling: Filling, _count: number): Promise<void> {
    throw new Error("No metric on Redis needs a deep queue yet.");
  }

  destroyNow(): void {
    this.#started?.destroyNow();
  }

  async #start(): Promise<RedisServer> {
    const server = await RedisServer.create({ fsync: "everysec" });
    this.#started = server;
    const wire = await connect({ url: server.url() });
    const [, version] = /redis_version:(\S+)/.exec(String(await wire.call(["INFO", "server"], 5_000))) ?? [];
    wire.close();
    process.stderr.write(`Redis ${version}, appendonly yes, appendfsync everysec, all other settings as shipped\n`);
    return server;
  }
}
