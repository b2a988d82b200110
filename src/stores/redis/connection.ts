// The store's connection: one wire at a time, made again when it is lost, and every call of a script under the run of the server to which it belongs.
//
// A run is begun by whichever process finds first that this server process has not seen the store (`runMark` is missing). Only after that are
// scripts loaded, on the same wire: a server that is started or promoted in between has broken it.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { CallOff, Clock, Random } from "../../job/time.ts";
import type { RedisAddress } from "./address.ts";
import { connect, Disconnected, type Reply, type Wire } from "./driver.ts";
import { Confirmations } from "./durability.ts";
import { isNoScript, replyCode } from "./errors.ts";
import { type HostPort, movedTo } from "./find-primary.ts";
import { Journal, type Resendable } from "./journal.ts";
import { beginText, LAYOUT_FROM_2, runMark, type Script, type ScriptName, scriptsOf, SERVER_CLOCK } from "./scripts.ts";

/** Layout 1 was never released: stores that have it were made by development versions, and are refused. Layout 2 becomes 3 when it is opened. */
export const SCHEMA_VERSION = 3;
const OLDEST_SCHEMA = 2;

export interface ConnectionDeps {
  readonly address: RedisAddress;
  readonly random: Random;
  readonly clock: Pick<Clock, "mono" | "after">;
  /** How scripts read the time. Default: the server's clock. */
  readonly luaClock?: string;
  /** Called with the server's clock, in ms, and when the call was sent (monotonic). */
  readonly onServerNow?: (now: number, sentAtMono: number) => void;
  /** Called when the wire is up with its subscriptions, and when it was lost. */
  readonly onConnected?: (connected: boolean) => void;
  /** Nothing is kept at this address: one that was emptied is as good as the one before. Default false: it is refused. */
  readonly isForgetful?: boolean;
  /** Called when the store has lost what this process knew of, and what could be sent again was. */
  readonly onLoss?: (loss: Loss) => void;
}

export interface Loss {
  /** How many operations that this process knew of were missing. */
  readonly operations: number;
  /** How many jobs were enqueued, and how many attempts ended, a second time because they were missing. */
  readonly jobs: number;
  readonly ends: number;
  /** How many calls could not be sent again yet: they are with the next connection. */
  readonly failed: number;
  /** How many are not sent again, because too much waited for it. */
  readonly dropped: number;
}

/** What this process knows of the store. After a loss, nothing else says what is missing. */
interface Seen {
  readonly runs: number;
  readonly ops: number;
  readonly epoch: number;
}

interface Run {
  readonly token: string;
  /** Where it was entered. */
  readonly wire: Wire;
  readonly scripts: (name: ScriptName) => Script;
}

/** A call that takes longer has failed, whether or not it was carried out. */
export const CALL_MS = 10_000;
/** A call under another run is made again under the new one; more often than this, something else is wrong. */
const MAX_RUNS = 8;
/** Nodes of a cluster that name each other. */
const MAX_HOPS = 5;
const RETRY_MIN_MS = 50;
const RETRY_MAX_MS = 1_000;

const NOTHING_NOTED = { operations: 0, jobs: 0, ends: 0 };

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
  readonly #channels = new Map<string, (message: string) => void>();
  readonly #unsubscribe = new Map<string, () => Promise<void>>();
  readonly #returned = new Set<() => void>();
  readonly #journal = new Journal();
  /** Null: nothing is promised beyond what the server does anyway. */
  readonly #confirmations: Confirmations | null;
  /** While this process sends again what the store has lost, all its other calls wait. */
  #resending: Promise<void> | null = null;
  /** What was missing and was sent again, and the store does not know of yet. */
  #unnoted = NOTHING_NOTED;
  /** A run in which the server was found to be a replica, or to have less than it had: there, it does not go on. */
  #endedRun: string | null = null;
  /** The node of a cluster that has the store, as far as is known. */
  #moved: HostPort | null = null;
  #retry: CallOff | undefined;
  #failures = 0;
  /** Which wire this is: grows whenever one was made. */
  wires = 0;

  constructor(deps: ConnectionDeps) {
    this.#deps = deps;
    this.#clock = deps.luaClock ?? SERVER_CLOCK;
    this.tag = tagOf(deps.address.name);
    const { durability, replicas } = deps.address.promise;
    const isPromised = durability === "fsync" || replicas > 0;
    this.#confirmations = isPromised ? new Confirmations(deps.address, this.tag, deps.clock) : null;
  }

  /** The highest operations counter and the epoch that this process knows of. */
  get seen(): Seen {
    return this.#seen;
  }

  /**
   * One script, carried out whole or not at all. `again`: how to send it again if the store turns out to have lost it although it was
   * acknowledged.
   */
  async eval(name: ScriptName, args: readonly string[] = [], again: readonly Resendable[] = []): Promise<Reply> {
    const { answer, ops, wire } = await this.#carryOut(name, args);
    if (ops === null) return answer;
    for (const one of again) this.#journal.note(one, ops, this.#deps.clock.mono());
    // A heartbeat, and who leads, is only about now.
    if (name !== "beat" && name !== "lead") await this.#confirmations?.confirmed(wire);
    return answer;
  }

  /** Also says which operation of the store it was; null: it has written nothing. */
  async #carryOut(
    name: ScriptName,
    args: readonly string[],
    isSentAgain = false,
  ): Promise<{ readonly answer: Reply; readonly ops: number | null; readonly wire: Wire }> {
    for (let tries = 0; ; tries++) {
      const wire = await this.#connected();
      if (this.#resending !== null && !isSentAgain) {
        await this.#resending;
        continue;
      }
      const run = this.#run!;
      const { sha, text } = run.scripts(name);
      const sentAtMono = this.#deps.clock.mono();
      let reply: Reply;
      try {
        reply = await wire.call(["EVALSHA", sha, "1", this.tag, ...args], CALL_MS);
      } catch (thrown) {
        if (movedTo(thrown) !== null && tries <= MAX_RUNS) continue;
        if (!isNoScript(thrown) || tries > MAX_RUNS) throw thrown;
        // Never loaded in this run, or this is another one.
        if (await this.#hasMark(wire, run.token)) await wire.call(["SCRIPT", "LOAD", text], CALL_MS);
        else await this.#enter(wire);
        continue;
      }
      const [ok, ops, now, epoch, answer] = reply as [number, string | number, string, string, Reply];
      if (ok === 1) {
        // Replies of one wire come in the order of their operations.
        if (run === this.#run && Number(ops) < this.#seen.ops) {
          this.#endedRun = run.token;
          wire.close();
          throw new WentBack();
        }
        this.#deps.onServerNow?.(Number(now), sentAtMono);
        this.#seen = { runs: this.#seen.runs, ops: Math.max(this.#seen.ops, Number(ops)), epoch: Number(epoch) };
        // Scripts that wrote return the number that they made, the others a text that they read.
        return { answer, ops: typeof ops === "number" ? ops : null, wire };
      }
      if (ok === 2) throw underRepair();
      if (tries > MAX_RUNS) throw restless();
      await this.#enter(wire);
    }
  }

  /** Before anything else of this process: whatever claims first may run a job again whose end was lost. */
  #resend(operations: number, dropped: number): void {
    const sending = (this.#resending ?? Promise.resolve()).then(() => this.#sendAgain(operations, dropped));
    const done = sending.finally(() => {
      if (this.#resending === done) this.#resending = null;
    });
    this.#resending = done;
  }

  async #sendAgain(operations: number, dropped: number): Promise<void> {
    const waiting = [...this.#journal.unsent];
    let [jobs, ends, isCut] = [0, 0, false];
    for (let [at, tries] = [0, 0]; at < waiting.length;) {
      const one = waiting[at]!;
      try {
        const { answer, ops } = await this.#carryOut(one.script, one.args, true);
        this.#journal.sent(one, ops, this.#deps.clock.mono());
        if (one.script === "enqueue") jobs += (answer as string[]).filter((became) => became === "1").length;
        if (one.script === "settleAgain") ends += Number(answer);
        at++;
      } catch (thrown) {
        // The next connection continues from here, in the same order. Nothing is sent that would make one while this counts as under way.
        if ((isCut = this.#wire === null)) break;
        if (!(thrown instanceof Disconnected) || ++tries > MAX_RUNS) at++;
      }
    }
    const before = this.#unnoted;
    this.#unnoted = {
      operations: Math.max(before.operations, operations),
      jobs: before.jobs + jobs,
      ends: before.ends + ends,
    };
    if (!isCut && Object.values(this.#unnoted).some((count) => count > 0)) {
      const { operations: missing, jobs: added, ends: settled } = this.#unnoted;
      await this.#carryOut("noteResent", [String(missing), String(added), String(settled)], true).then(
        () => (this.#unnoted = NOTHING_NOTED),
        () => {},
      );
    }
    if (operations + jobs + ends + dropped === 0) return;
    this.#deps.onLoss?.({ operations, jobs, ends, failed: this.#journal.unsent.length, dropped });
  }

  /** A plain command. Not for writes of the store's own keys. */
  async command(...args: readonly string[]): Promise<Reply> {
    return (await this.#connected()).call(args, CALL_MS);
  }

  /** A plain command over a connection of its own, as another process would send it. */
  async fromElsewhere(...args: readonly string[]): Promise<Reply> {
    const wire = await connect(this.#deps.address.wire, this.#moved);
    try {
      return await wire.call(args, CALL_MS);
    } finally {
      wire.close();
    }
  }

  pause(ms: number): Promise<void> {
    return new Promise((resolve) => this.#deps.clock.after(ms, resolve));
  }

  /** A name that no other process gives. */
  newToken(): string {
    return this.#deps.random.hex(16);
  }

  /** The store's own id and the run of the server, as far as they are known. */
  async identity(): Promise<string> {
    await this.#connected();
    return `${this.#storeId} ${this.#run!.token}`;
  }

  /** Learns again which store and which run this is. */
  async enterAgain(): Promise<void> {
    await this.#enter(await this.#connected());
  }

  /** Hears a channel from now on, also on later wires: with a subscription to keep, a lost wire is made again without being asked. */
  async subscribe(channel: string, heard: (message: string) => void): Promise<void> {
    this.#channels.set(channel, heard);
    const wire = await this.#connected();
    if (!this.#unsubscribe.has(channel)) await this.#hear(wire, channel);
  }

  async unsubscribe(channel: string): Promise<void> {
    this.#channels.delete(channel);
    const leave = this.#unsubscribe.get(channel);
    this.#unsubscribe.delete(channel);
    await leave?.().catch(() => {});
  }

  /** Calls `listener` whenever a lost wire was made again. */
  onReturn(listener: () => void): () => void {
    this.#returned.add(listener);
    return () => void this.#returned.delete(listener);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#retry?.();
    this.#confirmations?.lost();
    const wire = this.#wire;
    this.#wire = null;
    await wire?.then(
      (one) => one.close(),
      () => {},
    );
  }

  /** A server that is not, or no longer, the one that has the store ends its wire: the next call finds out where it is. */
  #watched(wire: Wire): Wire {
    const call = async (args: readonly string[], deadlineMs: number): Promise<Reply> => {
      try {
        return await wire.call(args, deadlineMs);
      } catch (thrown) {
        const to = movedTo(thrown);
        const isReplica = replyCode(thrown) === "READONLY";
        if (to !== null || isReplica) {
          // What it had and its primary did not is gone, although its process and its scripts are the same when it is promoted again.
          if (isReplica && this.#run?.wire === watched) this.#endedRun = this.#run.token;
          this.#moved = to;
          wire.close();
        }
        throw thrown;
      }
    };
    const watched = { ...wire, call };
    return watched;
  }

  #connected(): Promise<Wire> {
    if (this.#closed) return Promise.reject(closed());
    this.#retry?.();
    this.#retry = undefined;
    this.#wire ??= this.#open().catch((thrown: unknown) => {
      this.#wire = null;
      this.#failures++;
      this.#again();
      throw thrown;
    });
    return this.#wire;
  }

  async #open(hops = 0): Promise<Wire> {
    const moved = this.#moved;
    // If that node is gone, the address is asked again.
    this.#moved = null;
    const wire = this.#watched(await connect(this.#deps.address.wire, moved));
    try {
      this.#unsubscribe.clear();
      // The subscriptions come first: until they stand, other workers may consider this process dead.
      for (const channel of this.#channels.keys()) await this.#hear(wire, channel);
      await this.#enter(wire);
      await this.#confirmations?.check(wire, this.#run!.token, moved);
      if (this.#closed) throw closed();
    } catch (thrown) {
      wire.close();
      const to = movedTo(thrown);
      if (to === null || hops >= MAX_HOPS) throw thrown;
      this.#moved = to;
      return this.#open(hops + 1);
    }
    this.#moved = moved;
    this.wires++;
    const again = this.#failures > 0;
    this.#failures = 0;
    wire.onLost(() => this.#lost());
    this.#deps.onConnected?.(true);
    if (again) for (const listener of this.#returned) listener();
    return wire;
  }

  async #hear(wire: Wire, channel: string): Promise<void> {
    this.#unsubscribe.set(channel, await wire.subscribe(channel, (message) => this.#channels.get(channel)?.(message)));
  }

  #lost(): void {
    this.#wire = null;
    this.#confirmations?.lost();
    this.#failures++;
    if (this.#closed) return;
    this.#deps.onConnected?.(false);
    this.#again();
  }

  /** At once, then with backoff and jitter. */
  #again(): void {
    if (this.#closed || this.#retry || this.#channels.size === 0) return;
    const maxMs = Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** Math.min(this.#failures - 1, 10));
    const ms = this.#failures <= 1 ? 0 : maxMs * (0.5 + this.#deps.random.next() / 2);
    this.#retry = this.#deps.clock.after(ms, () => {
      this.#retry = undefined;
      void this.#connected().catch(() => {});
    });
  }

  /** Learns the run of this server, and begins it if no process has. */
  async #enter(wire: Wire): Promise<void> {
    const { random } = this.#deps;
    const call = (...args: string[]): Promise<Reply> => wire.call(args, CALL_MS);
    /** What this process knew before it came to this server; null: nothing. */
    const known = this.#seen.runs > 0 ? this.#seen : null;
    const knownRun = this.#run?.token;
    for (let tries = 0; tries < MAX_RUNS; tries++) {
      const fields = ["run", "id", "schema", "runs", "begun", "server", "ops", "former"];
      const meta = (await call("HMGET", `${this.tag}meta`, ...fields)) as (string | null)[];
      const [
        run = null,
        id = null,
        schema = null,
        runs = null,
        begun = null,
        server = null,
        ops = null,
        former = null,
      ] = meta;
      if (this.#storeId !== null && id !== this.#storeId && !this.#deps.isForgetful) throw replaced(id);
      if (Number(schema ?? SCHEMA_VERSION) > SCHEMA_VERSION) throw newer(Number(schema));
      if (Number(schema ?? SCHEMA_VERSION) < OLDEST_SCHEMA) throw unreleased(Number(schema));
      // A run that is begun by a newer program gives the store its layout, and ends that of all older ones: they do not know it.
      const isCurrent = Number(schema ?? SCHEMA_VERSION) === SCHEMA_VERSION;
      const { runs: seenRuns, ops: seenOps, epoch: seenEpoch } = this.#seen;
      // The same process of the server, with data of before: it was a replica in between, or was given older data.
      const isKnown = id !== null && id === this.#storeId && seenRuns > 0;
      const isOther = isKnown && (Number(runs) < seenRuns || (Number(runs) === seenRuns && run !== this.#run?.token));
      const wentBack = isOther || (isKnown && Number(runs) === seenRuns && Number(ops) < seenOps);
      const goesOn = isCurrent && run !== null && run !== this.#endedRun && !wentBack;
      if (goesOn && (await this.#hasMark(wire, run))) {
        const before = this.#seen;
        this.#storeId = id;
        this.#run = { token: run, wire, scripts: scriptsOf(run, this.#clock) };
        // Another run may have fewer operations: `#compare` finds out what is missing.
        const atLeast = before.runs === Number(runs) ? before.ops : 0;
        this.#seen = { ...before, runs: Number(runs), ops: Math.max(atLeast, Number(ops)) };
        const isLate = before.runs > 0 && before.runs === Number(runs) - 1 && before.ops > Number(begun);
        if (isLate) await this.#noteLoss(wire, before);
        // Numbers of operations can only be compared with those of the run before, if that was the one that this process knows.
        if (known !== null && known.runs !== Number(runs))
          this.#compare(known, Number(runs), Number(begun), former === null || former === knownRun);
        else if (this.#resending === null && (this.#journal.unsent.length > 0 || this.#unnoted !== NOTHING_NOTED))
          this.#resend(0, 0);
        return;
      }
      const serverId = await serverRunId(wire);
      // The same process of the server has only forgotten its scripts (SCRIPT FLUSH).
      if (goesOn && server && server === serverId) {
        await call("SCRIPT", "LOAD", runMark(run).text);
        continue;
      }
      if (!isCurrent)
        for (let from = "1"; from !== "";) from = (await call("EVAL", LAYOUT_FROM_2, "1", this.tag, from)) as string;
      const next = random.hex(8);
      // A replica refuses this, before a mark is left on it each time that it is asked.
      await call("HDEL", `${this.tag}meta`, "-");
      await call("SCRIPT", "LOAD", runMark(next).text);
      const facts = [
        run ?? "",
        next,
        String(seenRuns),
        String(seenOps),
        String(seenEpoch),
        random.hex(16),
        String(SCHEMA_VERSION),
        serverId,
        isOther ? "1" : "",
      ];
      await call("EVAL", beginText(this.#clock), "1", this.tag, ...facts);
      // The operations of the new run are at least as many as were known before.
      if (seenRuns > 0) this.#seen = { runs: 0, ops: seenOps, epoch: seenEpoch };
    }
    throw restless();
  }

  /** A run has begun since this process was here last. */
  #compare(before: Seen, runs: number, begun: number, isFormer: boolean): void {
    const has = before.runs === runs - 1 && isFormer ? begun : 0;
    const operations = before.runs === runs - 1 ? Math.max(0, before.ops - begun) : 0;
    this.#resend(operations, this.#journal.lose(has));
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

/** The server process's own id; empty: this user may not ask for it, and a server that forgot its scripts counts as another one. */
async function serverRunId(wire: Wire): Promise<string> {
  try {
    const info = String(await wire.call(["INFO", "server"], CALL_MS));
    return /^run_id:(\w+)/m.exec(info)?.[1] ?? "";
  } catch (thrown) {
    if (replyCode(thrown) === "NOPERM") return "";
    throw thrown;
  }
}

export function tagOf(name: string): string {
  return `o:{${name}}:`;
}

/** The reply belongs to a store that has lost what this process knew of: nothing in it is to be trusted. */
class WentBack extends Disconnected {
  constructor() {
    super("the server has lost writes that it had acknowledged, without being started again", "WENT_BACK");
  }
}

function closed(): OutliveError {
  return new OutliveError(ErrorCode.closed, "The store is closed.", "Open it again.");
}

function restless(): OutliveError {
  return new OutliveError(
    ErrorCode.storeUnreachable,
    "The Redis server was another one, or a newly started one, at each of several calls in a row.",
    "Check that its address leads to one server, and that it keeps running; running workers try again automatically.",
  );
}

function underRepair(): OutliveError {
  return new OutliveError(
    ErrorCode.storeBusy,
    "The Redis store is being repaired.",
    "Nothing was written. Wait for the repair; if none runs, one was interrupted: run `outlive check --repair` again.",
  );
}

function replaced(id: string | null): OutliveError {
  const why =
    id === null
      ? "the store is empty: it was flushed, or another server took its place"
      : "another store has its place";
  return new OutliveError(
    ErrorCode.storeReplaced,
    `This is not the Redis store that was opened: ${why}.`,
    "Nothing was written. Restore the store, or restart this program to work with the one that is there.",
    { why },
  );
}

function unreleased(schema: number): OutliveError {
  return new OutliveError(
    ErrorCode.storeUnusable,
    `The Redis store has layout ${schema}, which was never released, and this program knows ${SCHEMA_VERSION}.`,
    "Let the version that made it finish its jobs, then remove it with `outlive migrate down --force`, or use another store name.",
    { schema },
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
