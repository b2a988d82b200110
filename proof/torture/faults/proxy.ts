// A TCP proxy between the processes and their server, and what it can do to them: delay, cut, cut after some bytes of an answer, swallow
// everything without closing anything (a half-open connection, as a lost host leaves it), and reset and refuse one worker for a while. Like
// TCP it never reorders: what arrives is a beginning of what was sent.
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import type { Chance } from "../../../src/torture/killer.ts";
import { atEnd } from "../../../src/torture/run.ts";
import type { Fault } from "../processes/fault-schedule.ts";

/** The watchers hold back for 5 s at the most once their sessions are new, then look twice, 250 ms apart. */
export const HELD_BACK_MS = 6_000;

interface Line {
  /** The door that it came through. */
  readonly door: number;
  readonly client: Socket;
  readonly server: Socket;
}

/** One direction of a line. */
interface Way {
  readonly to: Socket;
  /** Resolves when all that came before has been passed on or lost. */
  passed: Promise<unknown>;
  /** What comes after the bytes that were its last is lost. */
  over: boolean;
}

export class Proxy {
  readonly faults: readonly Fault[] = [
    this.#fault("delay", "delay everything on the network", async (chance, wait) => {
      this.#delayMs = chance.whole(20, 200);
      await wait(chance.whole(200, 1_500));
      this.#delayMs = 0;
    }),
    this.#fault("cutAll", "cut every connection", async () => this.#cut(this.#lines)),
    this.#fault("cutSome", "cut some connections", async (chance) =>
      this.#cut([...this.#lines].filter(() => chance.next() < 0.4)),
    ),
    this.#fault("cutInAnswer", "cut connections after some bytes of an answer", async (chance, wait) => {
      this.#answerBytesLeft = chance.whole(1, 400);
      await wait(1_000);
      this.#answerBytesLeft = null;
    }),
    this.#fault("swallow", "swallow what some connections say", async (chance, wait) => {
      const swallowed = [...this.#lines].filter(() => chance.next() < 0.3);
      for (const line of swallowed) this.#silent.add(line);
      await wait(chance.whole(500, 3_000));
      // What was swallowed is lost: such a connection can't go on.
      this.#cut(swallowed);
    }),
  ];
  readonly #lines = new Set<Line>();
  readonly #silent = new WeakSet<Line>();
  /** Doors through which nothing gets. */
  readonly #refused = new Set<number>();
  readonly #to: { readonly host: string; readonly port: number };
  #delayMs = 0;
  /** Cuts the connection that gets the last of them; null: none. */
  #answerBytesLeft: number | null = null;

  private constructor(to: { readonly host: string; readonly port: number }) {
    this.#to = to;
  }

  /** Listens on free ports of the loopback, its doors, and returns the url that leads through each. */
  static async before(url: string, doors = 1): Promise<{ readonly proxy: Proxy; readonly urls: readonly string[] }> {
    const target = new URL(url);
    const proxy = new Proxy({ host: target.hostname, port: Number(target.port) });
    const urls: string[] = [];
    for (let door = 0; door < doors; door++) {
      const server = createServer((client) => proxy.#accept(client, door));
      await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
      server.unref();
      atEnd(() => server.close());
      target.hostname = "127.0.0.1";
      target.port = String((server.address() as AddressInfo).port);
      urls.push(target.href);
    }
    return { proxy, urls };
  }

  /** Resets what goes through a door, and whatever comes to it until `time` has passed, as a balancer without a server behind it does. */
  async refuse(door: number, time: () => Promise<void>): Promise<void> {
    this.#refused.add(door);
    for (const line of this.#lines)
      if (line.door === door) for (const socket of [line.client, line.server]) socket.resetAndDestroy();
    await time();
    this.#refused.delete(door);
  }

  #accept(client: Socket, door: number): void {
    if (this.#refused.has(door)) {
      client.on("error", () => {});
      client.resetAndDestroy();
      return;
    }
    const server = connect(this.#to);
    const line: Line = { door, client, server };
    this.#lines.add(line);
    const end = (): void => {
      this.#lines.delete(line);
      client.destroy();
      server.destroy();
    };
    for (const socket of [client, server]) {
      socket.setNoDelay(true);
      socket.on("error", end);
      socket.on("close", end);
    }
    const [there, back] = [server, client].map((to): Way => ({ to, passed: Promise.resolve(), over: false }));
    client.on("data", (bytes) => this.#pass(line, there!, bytes));
    server.on("data", (bytes) => this.#answer(line, back!, bytes));
  }

  /** After all that came before on its way, also when that was delayed and this is not. Never, if its line is cut or swallowed meanwhile. */
  #pass(line: Line, way: Way, bytes: Buffer, sent?: () => void): void {
    if (way.over) return;
    way.passed = Promise.all([way.passed, this.#delayMs === 0 ? null : pause(this.#delayMs)]).then(() => {
      if (!this.#silent.has(line) && way.to.writable) way.to.write(bytes, sent);
    });
  }

  /** An answer in the middle of which its connection may be cut. */
  #answer(line: Line, way: Way, bytes: Buffer): void {
    if (this.#answerBytesLeft === null || way.over) return this.#pass(line, way, bytes);
    if (bytes.length < this.#answerBytesLeft) {
      this.#answerBytesLeft -= bytes.length;
      return this.#pass(line, way, bytes);
    }
    this.#pass(line, way, bytes.subarray(0, this.#answerBytesLeft), () => this.#cut([line]));
    this.#answerBytesLeft = null;
    way.over = true;
  }

  #cut(lines: Iterable<Line>): void {
    for (const { client, server } of lines) {
      client.destroy();
      server.destroy();
    }
  }

  #fault(
    key: string,
    name: string,
    strike: (chance: Chance, wait: (ms: number) => Promise<void>) => Promise<void>,
  ): Fault {
    return {
      key,
      name,
      aftermathMs: HELD_BACK_MS,
      strike: (chance, signal) =>
        strike(chance, async (ms) => {
          await pause(ms, undefined, { signal }).catch(() => {});
        }),
    };
  }
}
