// The store's connection: one wire at a time, made again when it is lost, and every call of a script under the run of the server to which it belongs.
//
// A run is begun by whichever process finds first that this server process has not seen the store (`runMark` is missing). Only after that are
// scripts loaded, on the same wire: a server that is started or promoted in between has broken it.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Clock, Random } from "../../job/time.ts";
import type { RedisAddress } from "./address.ts";
import { connect, type Reply, type Wire } from "./driver.ts";
import { isNoScript, isServerAway } from "./errors.ts";
import { beginText, runMark, type Script, type ScriptName, scriptsOf, SERVER_CLOCK } from "./scripts.ts";

/** There are no earlier versions of the layout. */
export const SCHEMA_VERSION = 1;

export interface ConnectionDeps {
  readonly address: RedisAddress;
  readonly random: Random;
  readonly clock: Pick<Clock, "mono">;
  /** How scripts read the time. Default: the server's clock. */
  readonly luaClock?: string;
  /** Called with the server's clock, in ms, and when the call was sent (monotonic). */
  readonly onServerNow?: (now: number, sentAtMono: number) => void;
  /** Makes a wire. Default: `@redis/client`. */
  readonly connect?: () => Promise<Wire>;
}

/** What this process was told last. After a loss it is all that anybody alive knows of what is missing. */
interface Seen {
  readonly runs: number;
  readonly ops: number;
  readonly epoch: number;
}

interface Run {
  readonly token: string;
  readonly scripts: (name: ScriptName) => Script;
}

/** A call that takes longer has failed, whether or not it was carried out. */
export const CALL_MS = 10_000;
/** A call under another run is made again under the new one; more often than this, something else is wrong. */
const MAX_RUNS = 8;

export class Connection {
  /** What all keys of the store begin with. The braces put them into one slot of a cluster. */
  readonly tag: string;
  readonly #deps: ConnectionDeps;
  readonly #clock: string;
  #wire: Promise<Wire> | null = null;
  #run: Run | null = null;
  #storeId: string | null = null;
  #seen: Seen = { runs: 0, ops: 0, epoch: 0 };
  #closed = false;

  constructor(deps: ConnectionDeps) {
    this.#deps = deps;
    this.#clock = deps.luaClock ?? SERVER_CLOCK;
    this.tag = tagOf(deps.address.name);
  }

  /** The highest operations counter and the epoch that this process knows of. */
  get seen(): Seen {
    return this.#seen;
  }

  /** One script, carried out whole or not at all. */
  async eval(name: ScriptName, args: readonly string[] = []): Promise<Reply> {
    for (let tries = 0; ; tries++) {
      const wire = await this.#connected();
      const run = this.#run!;
      const { sha, text } = run.scripts(name);
      const sentAtMono = this.#deps.clock.mono();
      let reply: Reply;
      try {
        reply = await wire.call(["EVALSHA", sha, "1", this.tag, ...args], CALL_MS);
      } catch (thrown) {
        if (!isNoScript(thrown) || tries > MAX_RUNS) throw thrown;
        // Never loaded in this run, or this is another one.
        if (await this.#hasMark(wire, run.token)) await wire.call(["SCRIPT", "LOAD", text], CALL_MS);
        else await this.#enter(wire);
        continue;
      }
      const [ok, ops, now, epoch, answer] = reply as [number, string | number, string, string, Reply];
      if (ok === 1) {
        this.#deps.onServerNow?.(Number(now), sentAtMono);
        this.#seen = { runs: this.#seen.runs, ops: Math.max(this.#seen.ops, Number(ops)), epoch: Number(epoch) };
        return answer;
      }
      if (tries > MAX_RUNS) throw new Error("the server's run changed with every call");
      await this.#enter(wire);
    }
  }

  /** A plain command. Not for writes of the store's own keys. */
  async command(...args: readonly string[]): Promise<Reply> {
    return (await this.#connected()).call(args, CALL_MS);
  }

  async close(): Promise<void> {
    this.#closed = true;
    const wire = this.#wire;
    this.#wire = null;
    await wire?.then(
      (one) => one.close(),
      () => {},
    );
  }

  #connected(): Promise<Wire> {
    if (this.#closed) throw new Error("the connection is closed");
    this.#wire ??= this.#open().catch((thrown: unknown) => {
      this.#wire = null;
      throw thrown;
    });
    return this.#wire;
  }

  async #open(): Promise<Wire> {
    const wire = await (this.#deps.connect?.() ?? connect(this.#deps.address.wire));
    try {
      await this.#enter(wire);
    } catch (thrown) {
      wire.close();
      throw thrown;
    }
    wire.onLost(() => (this.#wire = null));
    return wire;
  }

  /** Learns the run of this server, and begins it if no process has. */
  async #enter(wire: Wire): Promise<void> {
    const { random } = this.#deps;
    const call = (...args: string[]): Promise<Reply> => wire.call(args, CALL_MS);
    for (let tries = 0; tries < MAX_RUNS; tries++) {
      const fields = ["run", "id", "schema", "runs", "begun"];
      const meta = (await call("HMGET", `${this.tag}meta`, ...fields)) as (string | null)[];
      const [run = null, id = null, schema = null, runs = null, begun = null] = meta;
      if (this.#storeId !== null && id !== this.#storeId) throw replaced(id);
      if (Number(schema ?? SCHEMA_VERSION) > SCHEMA_VERSION) throw newer(Number(schema));
      if (run !== null && (await this.#hasMark(wire, run))) {
        const before = this.#seen;
        this.#storeId = id;
        this.#run = { token: run, scripts: scriptsOf(run, this.#clock) };
        this.#seen = { ...before, runs: Number(runs) };
        const isLate = before.runs > 0 && before.runs === Number(runs) - 1 && before.ops > Number(begun);
        if (isLate) await this.#noteLoss(wire, before);
        return;
      }
      const next = random.hex(8);
      await call("SCRIPT", "LOAD", runMark(next).text);
      const { runs: seenRuns, ops, epoch } = this.#seen;
      const told = [run ?? "", next, String(seenRuns), String(ops), String(epoch), random.hex(16), String(SCHEMA_VERSION)];
      await call("EVAL", beginText(this.#clock), "1", this.tag, ...told);
      // The operations of the new run are at least as many as were known before.
      if (seenRuns > 0) this.#seen = { runs: 0, ops, epoch };
    }
    throw new Error("other processes begin runs of this server again and again");
  }

  /** Another process has begun this run, and knew less than this one. */
  async #noteLoss(wire: Wire, { runs, ops }: Seen): Promise<void> {
    const { text, sha } = this.#run!.scripts("noteLoss");
    await wire.call(["SCRIPT", "LOAD", text], CALL_MS);
    await wire.call(["EVALSHA", sha, "1", this.tag, String(runs), String(ops)], CALL_MS);
  }

  async #hasMark(wire: Wire, run: string): Promise<boolean> {
    const [found] = (await wire.call(["SCRIPT", "EXISTS", runMark(run).sha], CALL_MS)) as [number];
    return found === 1;
  }
}

export function tagOf(name: string): string {
  return `o:{${name}}:`;
}

/** Whether a call can be made again after a while: the server is away, starts, or is not the primary any more. */
export { isServerAway };

function replaced(id: string | null): OutliveError {
  const why = id === null ? "the store is empty: it was flushed, or another server took its place" : "another store has its place";
  return new OutliveError(
    ErrorCode.storeReplaced,
    `This is not the Redis store that was opened: ${why}.`,
    "Nothing was written. Restore the store, or restart this program to work with the one that is there.",
    { why },
  );
}

function newer(schema: number): OutliveError {
  return new OutliveError(
    ErrorCode.schemaNewer,
    `The Redis store has layout ${schema}, and this program knows ${SCHEMA_VERSION}.`,
    "Upgrade Outlive in this program.",
    { schema },
  );
}
