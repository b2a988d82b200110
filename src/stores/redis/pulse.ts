// Liveness in Redis for a store on another server: PostgreSQL behind a transaction pooler, where no session can hold a lock. Jobs, owners and the
// registry of workers stay in that store, without any expiry; Redis only shows sooner that a worker is gone. A worker's two connections subscribe
// to a channel of its own, as on the Redis store (liveness.ts).
//
// Losing Redis is not dying. A worker that loses its connection withdraws its evidence from its row in the store at once, and writes it again when
// the subscription stands. A recovery compares the row with the evidence that it found missing, in the transaction that takes the work. While Redis
// is away nothing is known from it, and heartbeats in the store decide.
import type { Clock, Random } from "../../job/time.ts";
import type { Liveness, Probe, WorkerRow } from "../liveness.ts";
import type { Finding } from "../port.ts";
import type { RedisAddress } from "./address.ts";
import { Connection } from "./connection.ts";
import { channelOf, isSeenByOthers, showsSubscriptions, SubscriptionLiveness } from "./liveness.ts";

export interface PulseDeps {
  readonly address: RedisAddress;
  /** What the store itself can show. */
  readonly inner: Liveness;
  readonly clock: Clock;
  readonly random: Random;
  readonly contactMs: number;
  /** The worker of this process, whose subscription another part of the process has, too. */
  readonly ownWorker?: string;
  readonly onHold?: (why: string, holdMs: number) => void;
  /** Called once, with what it means, if others do not see the worker's subscription. */
  readonly onHidden?: (text: string) => void;
}

/** What a worker's row says of Redis; null: nothing, heartbeats decide. */
export interface PulseEvidence {
  readonly name: string;
  readonly identity: string;
}

/** A server that does not reply is away; the watcher has others to check. */
const REPLY_MS = 1_000;
/** What the store knows of the worker's sessions comes first in the identity of its lock. */
export const OF_REDIS = "|";
const CHANNEL = /^o:\{liveness-/;
const HEARTBEATS =
  "So only heartbeats show that workers live, and a death on another host is found when its lease has ended.";
const HIDDEN = `Other connections to the Redis server of \`liveness\` do not see this worker's subscription, as behind a proxy that hides it. ${HEARTBEATS} Connect workers to the server itself.`;

/** As plain data, for a thread. Nothing else on the server has this name, and no job is kept there. */
export function pulseAddress(address: RedisAddress): RedisAddress {
  const promise = { ...address.promise, durability: "server", replicas: 0 } as const;
  return { ...address, name: `liveness-${address.name}`, promise };
}

export class RedisPulse implements Liveness {
  readonly manyHosts = true;
  readonly #deps: PulseDeps;
  readonly #connection: Connection;
  readonly #redis: SubscriptionLiveness;
  #connected = false;
  #changed: (() => void) | undefined;
  #letGo: (() => void) | undefined;
  /** Whether others see the worker's subscription, found out once for each wire. */
  #seen: { readonly wire: number; readonly byOthers: boolean } | null = null;
  #isHiddenReported = false;
  #writing = Promise.resolve();

  constructor(deps: PulseDeps) {
    const { address, clock, random, contactMs, ownWorker, onHold } = deps;
    this.#deps = deps;
    this.#connection = new Connection({
      address,
      random,
      clock,
      isForgetful: true,
      onConnected: (connected) => {
        this.#connected = connected;
        this.#changed?.();
      },
    });
    const own = ownWorker === undefined ? {} : { ownWorker };
    const hold = onHold === undefined ? {} : { onHold };
    this.#redis = new SubscriptionLiveness({ connection: this.#connection, clock, random, contactMs, ...own, ...hold });
  }

  async take(workerId: string): ReturnType<Liveness["take"]> {
    const inner = await this.#deps.inner.take(workerId);
    // If Redis is away, the subscription follows when it is back, and the maintenance writes the evidence then.
    const taken = await this.#inTime(this.#redis.take(workerId)).catch(() => null);
    const { name, identity } = taken?.evidence ?? { name: null, identity: null };
    const evidence =
      name === null ? inner.evidence : { name, identity: `${inner.evidence.identity ?? ""}${OF_REDIS}${identity}` };
    return {
      evidence,
      drop: async (remove) => {
        await this.#connection.unsubscribe(channelOf(this.#connection.tag, workerId));
        await inner.drop(remove);
      },
    };
  }

  async probe(worker: WorkerRow): Promise<Probe> {
    return (await this.probeAll([worker]))[0]!;
  }

  async probeAll(workers: readonly WorkerRow[]): Promise<readonly Probe[]> {
    const { inner } = this.#deps;
    const [here, there] = [workers.filter(isInRedis), workers.filter((worker) => !isInRedis(worker))];
    const ofRedis =
      here.length === 0
        ? []
        : await this.#inTime(this.#redis.probeAll(here.map(asInRedis))).catch(() => here.map((): Probe => "unknown"));
    const ofStore = inner.probeAll
      ? await inner.probeAll(there)
      : await Promise.all(there.map((worker) => inner.probe(worker)));
    const found = new Map<WorkerRow, Probe>();
    for (const [at, worker] of here.entries()) found.set(worker, ofRedis[at]!);
    for (const [at, worker] of there.entries()) found.set(worker, ofStore[at]!);
    return workers.map((worker) => found.get(worker)!);
  }

  async clean(worker: WorkerRow): Promise<boolean> {
    if (!isInRedis(worker)) return this.#deps.inner.clean(worker);
    return this.#inTime(this.#redis.clean(asInRedis(worker))).catch(() => true);
  }

  /** Sessions in the store are the store's. */
  async evict(worker: WorkerRow): Promise<unknown> {
    const lock = isInRedis(worker) ? { ...worker.lock, name: null } : worker.lock;
    return this.#deps.inner.evict?.({ ...worker, lock });
  }

  async leads(): Promise<boolean | null> {
    return (await this.#deps.inner.leads?.()) ?? null;
  }

  /** Of the store alone: while Redis is away, or was a moment ago, silence still counts. */
  holdMs(): number {
    return this.#deps.inner.holdMs?.() ?? 0;
  }

  isWaitingForContact(): boolean {
    return this.#redis.isWaitingForContact() || (this.#deps.inner.isWaitingForContact?.() ?? false);
  }

  /** What an operator should know of the server: whether it replies, and whether workers can show there that they live. */
  async advice(): Promise<Finding> {
    const { shown } = this.#deps.address;
    const is = (level: Finding["level"], text: string): Finding => ({ level, text: `liveness: ${shown} ${text}` });
    try {
      const isSeen = await this.#inTime(showsSubscriptions(this.#connection));
      if (isSeen === true) return is("ok", "shows the subscriptions of workers to each other.");
      if (isSeen === null)
        return is("warning", "refused further connections, so whether it shows subscriptions is not known.");
      return is("warning", `does not show a subscription to other connections, as behind a proxy. ${HEARTBEATS}`);
    } catch (thrown) {
      return is("warning", `can't be reached: ${(thrown as Error).message}. ${HEARTBEATS}`);
    }
  }

  /** Keeps a worker's subscription, and the evidence in its row true: now, whenever Redis goes and comes back, and once in a heartbeat. Returns how to end it. */
  async keep(
    workerId: string,
    everyMs: number,
    write: (evidence: PulseEvidence | null) => Promise<void>,
  ): Promise<() => void> {
    this.#letGo?.();
    const { clock } = this.#deps;
    const name = channelOf(this.#connection.tag, workerId);
    await this.#inTime(this.#connection.subscribe(name, () => {})).catch(() => {});
    let written: string | null | undefined;
    const update = async (): Promise<void> => {
      const identity = await this.#currentIdentity(name);
      if (identity === written) return;
      written = undefined;
      await write(identity === null ? null : { name, identity });
      written = identity;
    };
    // One write after the other: the row has what was true last. A write that fails is tried with the next heartbeat.
    const say = (): Promise<void> => (this.#writing = this.#writing.then(update).catch(() => {}));
    let isKept = true;
    const again = (): void =>
      void say().finally(() => {
        if (isKept) callOff = clock.after(everyMs, again);
      });
    let callOff = clock.after(everyMs, again);
    const letGo = (): void => {
      if (!isKept) return;
      isKept = false;
      callOff();
      this.#changed = undefined;
    };
    this.#letGo = letGo;
    this.#changed = () => void say();
    await say();
    return letGo;
  }

  async close(): Promise<void> {
    this.#letGo?.();
    await this.#connection.close();
  }

  async #currentIdentity(name: string): Promise<string | null> {
    if (!this.#connected) return null;
    try {
      // It may have been emptied, or restored, without a break of this connection.
      await this.#inTime(this.#connection.enterAgain());
      const identity = await this.#inTime(this.#connection.identity());
      return (await this.#isSeen(name)) ? identity : null;
    } catch {
      return null;
    }
  }

  /** Where others do not see subscriptions, a living worker would be missed as soon as its row named one. */
  async #isSeen(name: string): Promise<boolean> {
    const { wires: wire } = this.#connection;
    if (this.#seen?.wire !== wire) {
      const byOthers = await this.#inTime(isSeenByOthers(this.#connection, name));
      if (byOthers === null) return false;
      this.#seen = { wire, byOthers };
    }
    if (!this.#seen.byOthers && !this.#isHiddenReported) {
      this.#isHiddenReported = true;
      this.#deps.onHidden?.(HIDDEN);
    }
    return this.#seen.byOthers;
  }

  #inTime<T>(asked: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const callOff = this.#deps.clock.after(REPLY_MS, () => reject(new Error("Redis does not reply")));
      asked.then(resolve, reject).finally(() => callOff());
    });
  }
}

function isInRedis({ lock }: WorkerRow): boolean {
  return lock.name !== null && CHANNEL.test(lock.name);
}

function asInRedis(worker: WorkerRow): WorkerRow {
  const { name, identity } = worker.lock;
  return { ...worker, lock: { name, identity: identity?.slice(identity.indexOf(OF_REDIS) + 1) ?? null } };
}
