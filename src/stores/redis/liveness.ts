// The proof of life on Redis: a worker's two connections (its own and that of its maintenance) subscribe to a channel of its own. The server forgets
// a subscription with its connection, so a missing one proves the end of connections, not of a process. Contact with a worker is lost when its
// channel stays without a subscriber throughout `contact`, while the run of the server and the watcher's own connection stay the same. When
// either of these changes, the watcher waits 5 s and checks again. Only the kernel proves deaths (recovery/failure-detector.ts).
//
// `PUBSUB NUMSUB` needs no dangerous permission, and costs 0.2 ms for 1,000 workers.
import type { Clock, Random } from "../../job/time.ts";
import type { Liveness, Probe, WorkerRow } from "../liveness.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { worded } from "./errors.ts";

export interface LivenessDeps {
  readonly connection: Connection;
  readonly clock: Clock;
  readonly random: Random;
  /** How long a channel must be without a subscriber before contact with its worker is lost. */
  readonly contactMs: number;
  /** The worker of this process. */
  readonly ownWorker?: string;
  /** Called when the watcher begins to hold back, with the reason and the duration. */
  readonly onHold?: (why: string, holdMs: number) => void;
}

/** Two checks further apart than this do not show that a subscription was missing all the time between them. */
const LOOKS_APART_MS = 2_000;
export const HOLD_MS = 5_000;
/** How often the process that checks all workers says so, and how often while nothing needs it. Three times as long, no other asks for its place. */
const LEADS_EVERY_MS = 500;
const LEADS_SELDOM_MS = 10_000;
/** How often the others ask for the place if they do not hear that it is taken. */
const ASK_EVERY_MS = 500;

interface Missing {
  readonly sinceMono: number;
  readonly lastMono: number;
  readonly era: string;
  readonly beats: number;
}

export class SubscriptionLiveness implements Liveness {
  readonly manyHosts = true;
  readonly #deps: LivenessDeps;
  readonly #own = new Set<string>();
  readonly #missing = new Map<string, Missing>();
  readonly #name: string;
  #era: { readonly id: string; readonly run: string } | null = null;
  #holdUntil = 0;
  /** This watcher is new: its own connection lost nothing. */
  #newHere = false;
  #leads = false;
  /** Another process checks all workers, and has until then to say so again. */
  #heardUntilMono = Number.NEGATIVE_INFINITY;
  #askedMono = Number.NEGATIVE_INFINITY;
  /** How soon it said that it would ask again. */
  #everyMs = LEADS_EVERY_MS;
  /** Something was written since the process that checks all workers has last said so. */
  #expectsProof = false;

  constructor(deps: LivenessDeps) {
    this.#deps = deps;
    this.#name = deps.random.hex(8);
    if (deps.ownWorker !== undefined) this.#own.add(channelOf(deps.connection.tag, deps.ownWorker));
  }

  take(workerId: string): ReturnType<Liveness["take"]> {
    return worded("subscribing to the worker's channel", this.#take(workerId));
  }

  async #take(workerId: string): ReturnType<Liveness["take"]> {
    const { connection } = this.#deps;
    const channel = channelOf(connection.tag, workerId);
    await connection.subscribe(channel, () => {});
    this.#own.add(channel);
    const proves = await isSeenByOthers(connection, channel);
    return {
      // Where others do not see subscriptions, or may not, nothing can be concluded from a missing one, and heartbeats decide.
      evidence: { name: proves === true ? channel : null, identity: await connection.identity() },
      drop: async () => {
        this.#own.delete(channel);
        await connection.unsubscribe(channel);
      },
    };
  }

  async probe(worker: WorkerRow): Promise<Probe> {
    return (await this.probeAll([worker]))[0]!;
  }

  probeAll(workers: readonly WorkerRow[]): Promise<readonly Probe[]> {
    return worded("looking for the workers' subscriptions", this.#probeAll(workers));
  }

  async #probeAll(workers: readonly WorkerRow[]): Promise<readonly Probe[]> {
    const [store, run] = (await this.#deps.connection.identity()).split(" ") as [string, string];
    const provable = ({ lock }: WorkerRow): boolean =>
      lock.name !== null && lock.identity !== null && lock.identity.startsWith(`${store} `);
    const watched = workers.filter(provable);
    if (watched.length === 0) return workers.map(() => "unknown");
    const counts = await subscribers(
      this.#deps.connection,
      watched.map(({ lock }) => lock.name!),
    );
    const era = `${this.#deps.connection.wires} ${run}`;
    await this.#noteEra(era, run);
    const lost = this.#missingThroughout(era, run, watched, counts);
    return workers.map((worker) => {
      const { name } = worker.lock;
      if (!provable(worker)) return "unknown";
      if (lost.has(name!)) return "missing";
      return counts.get(name!)! > 0 || this.#own.has(name!) ? "held" : "unknown";
    });
  }

  /** Whether nothing of the worker is left on the server. */
  async clean({ lock }: WorkerRow): Promise<boolean> {
    if (lock.name === null) return true;
    if (this.#own.has(lock.name)) return false;
    const counts = subscribers(this.#deps.connection, [lock.name]);
    return (await worded("looking for a worker's subscription", counts)).get(lock.name) === 0;
  }

  holdMs(): number {
    return Math.max(0, this.#holdUntil - this.#deps.clock.mono());
  }

  isWaitingForContact(): boolean {
    const mono = this.#deps.clock.mono();
    return [...this.#missing.values()].some(({ lastMono }) => mono - lastMono <= LOOKS_APART_MS);
  }

  /** Whether this process checks all workers. Those that do not hear it from the one that does, and send nothing for it. */
  async leads(seldom = false): Promise<boolean> {
    const { connection, clock, ownWorker } = this.#deps;
    const mono = clock.mono();
    const everyMs = seldom ? LEADS_SELDOM_MS : LEADS_EVERY_MS;
    const sinceMs = mono - this.#askedMono;
    const isEarly = this.#leads
      ? sinceMs < Math.min(everyMs, this.#everyMs)
      : sinceMs < ASK_EVERY_MS || mono < this.#heardUntilMono;
    if (isEarly) return this.#leads;
    this.#askedMono = mono;
    this.#everyMs = everyMs;
    const channel = ownWorker === undefined ? "" : channelOf(connection.tag, ownWorker);
    const lateMs = this.#expectsProof ? String(3 * LEADS_EVERY_MS) : "";
    const asked = connection.eval("lead", [this.#name, channel, String(3 * everyMs), lateMs]);
    this.#leads = (await worded("electing who checks all workers", asked)) === 1;
    return this.#leads;
  }

  /** A process checks all workers, and says so again within `forMs`. */
  heardProof(forMs: number): void {
    this.#heardUntilMono = this.#deps.clock.mono() + forMs;
    this.#expectsProof = false;
  }

  /**
   * Something was written. The process that checks all workers hears it, too, and says that it does within half a second, however seldom it did before. If it does
   * not, it stands still, and another one takes its place.
   */
  heardWrite(): void {
    if (this.#expectsProof || this.#leads) return;
    this.#expectsProof = true;
    this.#heardUntilMono = Math.min(this.#heardUntilMono, this.#deps.clock.mono() + 3 * LEADS_EVERY_MS);
  }

  /** It may have been the one that checks all workers that has gone. */
  fleetChanged(): void {
    this.#heardUntilMono = Number.NEGATIVE_INFINITY;
  }

  /** Which of these channels had no subscriber in every check throughout `contact`, in one era. */
  #missingThroughout(
    era: string,
    run: string,
    workers: readonly WorkerRow[],
    counts: ReadonlyMap<string, number>,
  ): ReadonlySet<string> {
    const { clock, contactMs } = this.#deps;
    const mono = clock.mono();
    const lost = new Set<string>();
    for (const [name, seen] of this.#missing)
      if ((counts.get(name) ?? 0) > 0 || seen.era !== era || mono - seen.lastMono > LOOKS_APART_MS)
        this.#missing.delete(name);
    for (const { lock, beats } of workers) {
      const name = lock.name!;
      if (counts.get(name)! > 0 || this.#own.has(name) || !this.#speaks(lock.identity!, run)) continue;
      const seen = this.#missing.get(name);
      // A worker whose connection is back sends a heartbeat at once: it was not missing all the time.
      const sinceMono = seen && seen.beats === beats ? seen.sinceMono : mono;
      this.#missing.set(name, { sinceMono, lastMono: mono, era, beats });
      if (mono - sinceMono >= contactMs) lost.add(name);
    }
    return lost;
  }

  /** While workers may still be reconnecting, only the subscription of a worker that registered in this very run proves anything. */
  #speaks(identity: string, run: string): boolean {
    return this.holdMs() === 0 || (this.#newHere && identity.endsWith(` ${run}`));
  }

  async #noteEra(id: string, run: string): Promise<void> {
    const { clock, onHold, connection } = this.#deps;
    const before = this.#era;
    if (before?.id === id) return;
    this.#era = { id, run };
    this.#newHere = before === null;
    // A new watcher lost nothing; all it can know is that the server itself started recently.
    const begunAt = before === null ? Number(await connection.command("HGET", `${connection.tag}meta`, "begunAt")) : 0;
    const holdMs = before === null ? HOLD_MS - (clock.now() - begunAt) : HOLD_MS;
    if (holdMs <= 0) return;
    this.#holdUntil = clock.mono() + Math.min(HOLD_MS, holdMs);
    onHold?.(before?.run === run ? "the connection to the store was lost" : "the store restarted", this.holdMs());
  }
}

/** One connection may share a proxy with the subscription by chance, and see what others do not. */
const OTHERS = 3;
/** A server that is at its limit of clients refuses some of them for a moment. */
const ASKED_AGAIN = 5;
const ASK_AGAIN_MS = 100;

/**
 * Whether this subscription is seen over every one of several new connections, as other workers would make them. Behind a proxy that hides subscriptions none
 * sees it, and behind several that each know their own, some do not. Null: too many connections were refused, also later and one at a time, which proves nothing.
 */
export async function isSeenByOthers(connection: Connection, channel: string): Promise<boolean | null> {
  const isSeen = async (): Promise<boolean> => {
    const reply = await connection.fromElsewhere("PUBSUB", "NUMSUB", channel);
    return countsIn(reply, [channel]).get(channel)! > 0;
  };
  const asked = await Promise.allSettled(Array.from({ length: OTHERS }, isSeen));
  const seen = asked.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
  for (let again = 0; seen.length < OTHERS && !seen.includes(false) && again < ASKED_AGAIN; again++) {
    await connection.pause(ASK_AGAIN_MS);
    await isSeen().then(
      (value) => seen.push(value),
      () => {},
    );
  }
  if (seen.includes(false)) return false;
  return seen.length < OTHERS ? null : true;
}

/** Whether a worker that connects as this process does could show by a subscription that it lives. */
export async function showsSubscriptions(connection: Connection): Promise<boolean | null> {
  const channel = channelOf(connection.tag, `check-${connection.newToken()}`);
  try {
    await connection.subscribe(channel, () => {});
    return await isSeenByOthers(connection, channel);
  } finally {
    await connection.unsubscribe(channel);
  }
}

/** How many connections are subscribed to each of these channels. */
export async function subscribers(
  connection: Connection,
  channels: readonly string[],
): Promise<ReadonlyMap<string, number>> {
  return countsIn(await connection.command("PUBSUB", "NUMSUB", ...channels), channels);
}

function countsIn(reply: Reply, channels: readonly string[]): ReadonlyMap<string, number> {
  // RESP3 returns a map, RESP2 a flat list.
  const flat = Array.isArray(reply) ? (reply as (string | number)[]) : Object.entries(reply as object).flat();
  return new Map(channels.map((name) => [name, Number(flat[flat.indexOf(name) + 1] ?? 0)]));
}

export function channelOf(tag: string, workerId: string): string {
  return `${tag}w:${workerId}`;
}
