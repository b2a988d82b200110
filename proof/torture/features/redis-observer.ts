// The observer on Redis, which has no triggers: it reads every write of a job's record from MONITOR, in the order in which the server carries them out,
// and decodes the record itself. So it sees what the scripts wrote and not what their indexes or the engine say.
import { connect as connectSocket, type Socket } from "node:net";
import { connect, type Wire } from "../../../src/stores/redis/driver.ts";
import { redisAddress } from "../../../src/stores/redis/address.ts";
import { tagOf } from "../../../src/stores/redis/connection.ts";
import { AT } from "../../../src/stores/redis/lua/plain.ts";
import { RUNNING, type Sighting } from "./observer.ts";

interface Seen {
  readonly row: number;
  readonly job: string;
  readonly kind: number;
  readonly fence: number;
  readonly runs: boolean;
  readonly startedAt: number;
}

/** As MONITOR writes it: 1700000000.123456 [0 lua] "HSET" "key" "field" "value" ... */
const ARGUMENT = /"((?:[^"\\]|\\.)*)"/gs;
const ESCAPE = /\\(?:x([0-9a-f]{2})|(.))/gs;
const ESCAPED: Readonly<Record<string, string>> = { n: "\n", r: "\r", t: "\t", a: "\u0007", b: "\b" };
const CALL_MS = 10_000;

export class RedisObserver {
  readonly #socket: Socket;
  readonly #wire: Wire;
  readonly #tag: string;
  readonly #kinds: ReadonlySet<string>;
  readonly #states = new Map<number, boolean>();
  readonly #seen: Seen[] = [];
  #rest = "";
  #marked: { readonly mark: string; readonly resolve: () => void } | null = null;

  private constructor(socket: Socket, wire: Wire, tag: string, kinds: readonly string[]) {
    this.#socket = socket;
    this.#wire = wire;
    this.#tag = tag;
    this.#kinds = new Set(kinds);
    socket.on("data", (text: string) => this.#heard(text));
    // A server that is stopped before this connection ends is not an error of the rig's.
    socket.on("error", () => {});
  }

  /** Watches the jobs of these kinds from now on, whose inputs have a `key`. */
  static async watch(url: string, kinds: readonly string[]): Promise<RedisObserver> {
    const { wire: at, name } = redisAddress(url);
    const { hostname, port } = new URL(url);
    const socket = connectSocket(Number(port), hostname);
    socket.setEncoding("latin1");
    const observer = new RedisObserver(socket, await connect(at), tagOf(name), kinds);
    socket.write("MONITOR\r\n");
    await observer.#upToDate();
    return observer;
  }

  /** In the order in which they happened. */
  async sightings(): Promise<Sighting[]> {
    await this.#upToDate();
    const names = new Map<number, string>();
    const keys = new Map<number, string>();
    const found: Sighting[] = [];
    for (const { row, kind: number, job, fence, runs, startedAt } of this.#seen) {
      if (!names.has(number)) names.set(number, await this.#field(`k:${number}`, "name"));
      const kind = names.get(number)!;
      if (!this.#kinds.has(kind)) continue;
      if (!keys.has(row)) keys.set(row, await this.#keyOf(row));
      found.push({ job, kind, key: keys.get(row)!, fence, runs, startedAt });
    }
    return found;
  }

  close(): void {
    this.#socket.destroy();
    this.#wire.close();
  }

  async #field(key: string, field: string): Promise<string> {
    return String(await this.#wire.call(["HGET", this.#tag + key, field], CALL_MS));
  }

  /** A stored input has nine characters of checksum in front. */
  async #keyOf(row: number): Promise<string> {
    const list = `${this.#tag}i:${Math.floor(row / 64)}`;
    const stored = String(await this.#wire.call(["LINDEX", list, String(row % 64)], CALL_MS));
    return (JSON.parse(stored.slice(9)) as { readonly key: string }).key;
  }

  /** Everything that the server has done by now was heard. */
  async #upToDate(): Promise<void> {
    const mark = `rig:${Math.random()}`;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#marked = { mark, resolve };
    const again = setInterval(() => void this.#wire.call(["GET", mark], CALL_MS).catch(() => {}), 50);
    try {
      await promise;
    } finally {
      clearInterval(again);
    }
  }

  #heard(text: string): void {
    const lines = (this.#rest + text).split("\r\n");
    this.#rest = lines.pop()!;
    for (const line of lines) {
      if (this.#marked !== null && line.includes(this.#marked.mark)) {
        this.#marked.resolve();
        this.#marked = null;
      }
      if (line.includes(`"HSET" "${this.#tag}j:`)) this.#record(line);
    }
  }

  #record(line: string): void {
    const [, key, ...pairs] = [...line.matchAll(ARGUMENT)].map(([, text]) => unescaped(text!));
    const page = Number(key!.slice(`${this.#tag}j:`.length));
    for (let at = 0; at < pairs.length; at += 2) {
      const row = page * 64 + Number(pairs[at]);
      const slot = Buffer.from(pairs[at + 1]!, "latin1");
      const runs = slot[0]! % 8 === RUNNING;
      if (runs === (this.#states.get(row) ?? false)) continue;
      this.#states.set(row, runs);
      this.#seen.push({
        row,
        runs,
        job: slot.subarray(AT.id - 1).toString("utf8"),
        kind: slot.readUInt16BE(AT.kind - 1),
        fence: slot.readUInt32BE(AT.fence - 1),
        startedAt: slot.readUIntBE(AT.started - 1, 6),
      });
    }
  }
}

function unescaped(text: string): string {
  return text.replaceAll(ESCAPE, (_, code: string | undefined, letter: string | undefined) =>
    code === undefined ? (ESCAPED[letter!] ?? letter!) : String.fromCharCode(Number.parseInt(code, 16)),
  );
}
