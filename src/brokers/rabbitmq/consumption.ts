// The loop that consumes: connect, declare, consume, and again after a loss, with a pause that grows. A delivery is acknowledged through the channel
// that brought it and no other: tags begin at 1 on each channel, and a tag of an old one would acknowledge another message. What can't be
// handled now is kept in hand and tried again, so that an outage of the store costs no delivery its count.
import type { ConsumeMessage } from "amqplib";
import { ErrorCode, type OutliveError } from "../../job/errors.ts";
import type { BrokerNews, Consumer, Consumption, WiredKind } from "../../stores/broker.ts";
import { type Address, after, type Channel, connect, deadline, isLate, type Link, openChannel } from "./connection.ts";
import { answer, deliveryOf, handled, timesDelivered } from "./handling.ts";
import { Pulling } from "./pulling.ts";
import { nextTurn } from "./suspects.ts";
import { declareKind } from "./topology.ts";

/** Between two attempts to reach the broker, without the jitter: it is consumed from again within 2 s after its port has opened. */
const MAX_PAUSE_MS = 500;
/** Of a broker that is there and refuses: only an operator changes that. */
const MAX_REFUSED_PAUSE_MS = 5_000;
/** So many messages of a queue may be kept in hand before those behind them wait. */
const MAX_KEPT = 1_000;
/** A consumer that could not start, because its queue is not there, is tried again. */
const RETRY_MS = 1_000;

export class RabbitmqConsumption implements Consumption {
  readonly #address: Address;
  readonly #kinds: readonly WiredKind[];
  readonly #news: (news: BrokerNews) => void;
  readonly #stopping = new AbortController();
  readonly #looping: Promise<void>;
  #wanted: readonly Consumer[] = [];
  #link: Link | null = null;
  #consuming = new Map<string, ConsumedQueue>();
  /** Those that take nothing more, and have something in hand. */
  readonly #ending = new Set<ConsumedQueue>();
  /** Kinds whose queues the broker refuses. They are not consumed; the others are. */
  #refused = new Set<string>();

  constructor(address: Address, kinds: readonly WiredKind[], news: (news: BrokerNews) => void) {
    this.#address = address;
    this.#kinds = kinds;
    this.#news = news;
    this.#looping = this.#loop();
  }

  set(consumers: readonly Consumer[]): void {
    this.#wanted = consumers;
    if (this.#link) this.#adjust(this.#link);
  }

  async stop(): Promise<void> {
    this.#wanted = [];
    await Promise.all([...this.#consuming.values(), ...this.#ending].map((one) => one.stop()));
    this.#stopping.abort();
    this.#link?.destroy();
    await this.#looping;
  }

  async #loop(): Promise<void> {
    const { signal } = this.#stopping;
    const { shown } = this.#address;
    for (let pauseMs = 100; !signal.aborted;) {
      let why: string;
      let maxPauseMs = MAX_PAUSE_MS;
      this.#refused = new Set();
      try {
        const link = await connect(this.#address, "consumes");
        if (signal.aborted) return link.destroy();
        try {
          await this.#declare(link, this.#kinds);
        } catch (thrown) {
          link.destroy();
          throw thrown;
        }
        // Stopped meanwhile: `stop` did not know of this connection, and waits for the loop.
        if (signal.aborted) return link.destroy();
        this.#link = link;
        this.#adjust(link);
        if (this.#kinds.length === 0 || this.#refused.size < this.#kinds.length)
          this.#news({ state: "connected", text: `consumes from ${shown}` });
        if (this.#refused.size > 0) void this.#declareRefused(link);
        pauseMs = 100;
        why = await link.ended;
      } catch (thrown) {
        why = (thrown as Error).message;
        if ((thrown as { code?: unknown }).code === ErrorCode.brokerRefused) maxPauseMs = MAX_REFUSED_PAUSE_MS;
      }
      this.#link?.destroy();
      this.#link = null;
      for (const one of [...this.#consuming.values(), ...this.#ending]) one.lose();
      this.#consuming = new Map();
      if (signal.aborted) return;
      this.#news({ state: "lost", text: `${shown} is not reachable, and is tried again: ${why}` });
      // Jitter, so that a fleet does not return at once.
      await after(pauseMs * (0.5 + Math.random()), signal);
      pauseMs = Math.min(maxPauseMs, pauseMs * 2);
    }
  }

  /** The queues of each of these kinds, on a channel of its own: a refusal ends the channel, and must not stop another kind. */
  async #declare(link: Link, kinds: readonly WiredKind[]): Promise<void> {
    const { shown } = this.#address;
    for (const wired of kinds) {
      const channel = await openChannel(
        link,
        shown,
        (model) => model.createChannel(),
        () => {},
      );
      try {
        await declareKind(channel, shown, wired);
        this.#refused.delete(wired.kind);
        await deadline(channel.close(), shown, "closing a channel");
      } catch (thrown) {
        const { code, message } = thrown as OutliveError;
        if (code !== ErrorCode.brokerRefused) throw thrown;
        this.#refused.add(wired.kind);
        this.#news({ state: "refused", text: `${wired.kind} is not consumed, and is tried again: ${message}` });
      }
    }
  }

  /** Tries the refused ones again, until the connection ends. Only an operator changes what a broker refuses. */
  async #declareRefused(link: Link): Promise<void> {
    const { signal } = this.#stopping;
    for (let pauseMs = 500; this.#refused.size > 0; pauseMs = Math.min(MAX_REFUSED_PAUSE_MS, pauseMs * 2)) {
      await after(pauseMs * (0.5 + Math.random()), signal);
      if (signal.aborted || this.#link !== link) return;
      const refused = this.#kinds.filter(({ kind }) => this.#refused.has(kind));
      try {
        await this.#declare(link, refused);
      } catch {
        // The connection has ended, or the broker does not respond any more.
        return link.destroy();
      }
      if (this.#link !== link) return;
      this.#adjust(link);
      for (const { kind } of refused)
        if (!this.#refused.has(kind))
          this.#news({ state: "connected", text: `consumes ${kind} from ${this.#address.shown}` });
    }
  }

  #adjust(link: Link): void {
    const wanted = new Map(
      this.#wanted.filter(({ kind }) => !this.#refused.has(kind)).map((consumer) => [consumer.queue, consumer]),
    );
    for (const [queue, one] of this.#consuming) {
      if (wanted.get(queue)?.prefetch === one.prefetch) continue;
      this.#consuming.delete(queue);
      void this.#end(one);
    }
    for (const [queue, consumer] of wanted) {
      // The room of what begins belongs to what ends, until that holds nothing any more.
      if (this.#consuming.has(queue) || [...this.#ending].some(({ kind }) => kind === consumer.kind)) continue;
      const parts = [link, this.#address.shown, consumer, this.#stopping.signal, this.#news] as const;
      this.#consuming.set(queue, consumer.pulls ? new Pulling(...parts) : new Consuming(...parts));
    }
  }

  async #end(one: ConsumedQueue): Promise<void> {
    this.#ending.add(one);
    await one.end();
    this.#ending.delete(one);
    if (this.#link) this.#adjust(this.#link);
  }
}

/** One queue, on one connection. */
interface ConsumedQueue {
  readonly kind: string;
  readonly prefetch: number;
  lose(): void;
  stop(): Promise<void>;
  end(): Promise<void>;
}

interface InHand {
  readonly channel: Channel;
  readonly message: ConsumeMessage;
  /** How often it was delivered before. */
  readonly times: number;
}

/** A queue from which the broker brings as many messages as this process may hold. */
class Consuming implements ConsumedQueue {
  readonly #link: Link;
  readonly #shown: string;
  readonly #consumer: Consumer;
  readonly #signal: AbortSignal;
  readonly #news: (news: BrokerNews) => void;
  /** How often the broker has refused to let its queue be consumed. */
  #refusals = 0;
  /** Ends the pause before the next attempt to handle what failed. */
  readonly #hurry = new AbortController();
  #channel: Channel | null = null;
  /** Of its consumers. There is more than one if messages are kept in hand: what they take of the prefetch is given to another. */
  #tags: string[] = [];
  /** Messages that stay in hand of this channel. */
  #kept = 0;
  #waiting: InHand[] = [];
  #turns = 0;
  #isolates = false;
  #areSuspectsNext = false;
  /** When the latest message came that was delivered before. */
  #suspectMono = 0;
  #isPumpedLater = false;
  #stopped = false;
  #isEnding = false;
  #idle: (() => void) | null = null;
  #starting: Promise<void>;

  constructor(link: Link, shown: string, consumer: Consumer, signal: AbortSignal, news: (news: BrokerNews) => void) {
    this.#news = news;
    this.#link = link;
    this.#shown = shown;
    this.#consumer = consumer;
    this.#signal = signal;
    this.#starting = this.#start();
  }

  get kind(): string {
    return this.#consumer.kind;
  }

  get prefetch(): number {
    return this.#consumer.prefetch;
  }

  /** The connection is gone, and with it every delivery: the broker brings them again. */
  lose(): void {
    this.#stopped = true;
    this.#hurry.abort();
    this.#waiting = [];
  }

  /** Takes nothing more. What waits goes to another process, what is being handled is acknowledged. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#hurry.abort();
    this.#waiting = [];
    await this.#cancel();
    while (this.#turns > 0) await this.#untilIdle();
    const channel = this.#channel;
    if (channel) await deadline(channel.close(), this.#shown, "closing a channel").catch(() => {});
  }

  /** Takes nothing more and handles what it has: a message that is returned would count as delivered again. What can't be handled is returned. */
  async end(): Promise<void> {
    this.#isEnding = true;
    this.#hurry.abort();
    await this.#cancel();
    while (!this.#stopped && (this.#waiting.length > 0 || this.#turns > 0)) {
      this.#pump();
      if (this.#turns > 0) await this.#untilIdle();
      else await new Promise(setImmediate);
    }
    await this.stop();
  }

  async #cancel(): Promise<void> {
    // One that is about to consume would do so after this.
    await this.#starting.catch(() => {});
    const channel = this.#channel;
    for (const tag of channel ? this.#tags.splice(0) : [])
      await deadline(channel!.cancel(tag), this.#shown, "cancelling").catch(() => {});
  }

  #untilIdle(): Promise<void> {
    return new Promise((resolve) => {
      const former = this.#idle;
      this.#idle = (): void => {
        former?.();
        resolve();
      };
    });
  }

  async #start(): Promise<void> {
    const { queue, prefetch } = this.#consumer;
    while (!this.#stopped && !this.#isEnding) {
      // A channel that ends before it consumes is this loop's: with a second one each failed attempt would double them.
      let isConsuming = false;
      let isEnded = false;
      try {
        const ended = (): void => {
          isEnded = true;
          // By the broker, for instance because the queue was deleted or a delivery was held for too long. Its deliveries come again.
          if (!isConsuming || this.#channel !== channel || this.#stopped) return;
          this.#channel = null;
          this.#waiting = [];
          this.#tags = [];
          void after(RETRY_MS, this.#signal).then(() => {
            if (!this.#stopped && !this.#isEnding) this.#starting = this.#start();
          });
        };
        const channel: Channel = await openChannel(
          this.#link,
          this.#shown,
          (model) => model.createChannel(),
          () => ended(),
        );
        this.#channel = channel;
        this.#kept = 0;
        await deadline(channel.prefetch(prefetch), this.#shown, `limiting deliveries of ${queue}`);
        const tag = await this.#consume(channel);
        if (isEnded) throw new Error(`the channel of ${queue} has ended`);
        this.#tags = [tag];
        isConsuming = true;
        if (this.#refusals > 1) this.#news({ state: "connected", text: `consumes ${queue} from ${this.#shown}` });
        this.#refusals = 0;
        return;
      } catch (thrown) {
        if (this.#stopped || this.#isEnding) return;
        // The loop makes a new connection.
        if (isLate(thrown)) return this.#link.destroy();
        this.#channel = null;
        this.#waiting = [];
        const { code, message } = thrown as OutliveError;
        // Not the first: a collection may be found before its queues are made.
        if (code === ErrorCode.brokerRefused && ++this.#refusals === 2)
          this.#news({ state: "refused", text: `${queue} is not consumed, and is tried again: ${message}` });
        await after(RETRY_MS, AbortSignal.any([this.#signal, this.#hurry.signal]));
        if (this.#signal.aborted) return;
      }
    }
  }

  async #consume(channel: Channel): Promise<string> {
    const { queue } = this.#consumer;
    const { consumerTag } = await deadline(
      channel.consume(queue, (message) => this.#receive(channel, message), { noAck: false }),
      this.#shown,
      `consuming from ${queue}`,
    );
    return consumerTag;
  }

  /** A message that is kept holds up those behind it. Each consumer of a channel has a prefetch of its own, so one more takes them. */
  #keep(channel: Channel): void {
    if (channel !== this.#channel || ++this.#kept % this.#consumer.prefetch !== 0 || this.#kept > MAX_KEPT) return;
    const more = async (): Promise<void> => {
      if (this.#stopped || this.#isEnding) return;
      const tag = await this.#consume(channel);
      if (channel === this.#channel) this.#tags.push(tag);
    };
    // One that fails ends the channel, which begins again. A stop waits for it.
    this.#starting = this.#starting.then(more).catch((thrown: unknown) => {
      if (isLate(thrown)) this.#link.destroy();
    });
  }

  #receive(channel: Channel, message: ConsumeMessage | null): void {
    if (this.#stopped) return;
    if (message === null) {
      // The queue was deleted, or lost its leader: consume again.
      void channel.close().catch(() => {});
      return;
    }
    const times = timesDelivered(message);
    if (times > 0) this.#suspectMono = performance.now();
    this.#waiting.push({ channel, message, times });
    // What comes in one read of the socket shares a turn.
    setImmediate(() => this.#pump());
  }

  /** What came together shares a turn. The broker brings no more than `prefetch`, so turns need no limit. */
  #pump(): void {
    if (this.#stopped || this.#isolates || this.#waiting.length === 0) return;
    const next = nextTurn(this.#waiting, {
      prefetch: this.#consumer.prefetch,
      quietMs: this.#isEnding ? Infinity : performance.now() - this.#suspectMono,
      isBusy: this.#turns > 0,
      areSuspectsNext: this.#areSuspectsNext,
    });
    if (next.taken === null) return this.#pumpIn(next.againInMs);
    const taken = new Set(next.taken);
    this.#waiting = this.#waiting.filter((one) => !taken.has(one));
    this.#areSuspectsNext = !next.isIsolated && this.#waiting.length > 0;
    this.#isolates = next.isIsolated;
    void this.#turn([...taken]).finally(() => next.isIsolated && (this.#isolates = false));
  }

  #pumpIn(ms: number | null): void {
    if (ms === null || this.#isPumpedLater) return;
    this.#isPumpedLater = true;
    void after(ms, this.#hurry.signal).then(() => {
      this.#isPumpedLater = false;
      this.#pump();
    });
  }

  async #turn(inHand: readonly InHand[]): Promise<void> {
    this.#turns++;
    try {
      const deliveries = inHand.map(({ message, times }) => deliveryOf(message, times));
      const verdicts = await handled(this.#consumer, deliveries, this.#hurry.signal);
      for (const [at, { channel, message }] of inHand.entries()) {
        const verdict = verdicts?.[at] ?? "requeue";
        if (verdict === "keep") this.#keep(channel);
        else answer(channel, message, verdict);
      }
    } finally {
      this.#turns--;
      const idle = this.#turns === 0 ? this.#idle : null;
      if (idle) {
        this.#idle = null;
        idle();
      }
      setImmediate(() => this.#pump());
    }
  }
}
