// A queue whose messages are taken one at a time, when each can be handled at once, and never wait in hand. The broker counts a delivery for whatever a
// process holds when it dies. So here the count of a message is the number of deaths while it was being handled (or kept in hand, because the blob store was
// away). While its messages were pushed and waited, one that did nothing wrong was counted 14 times in a storm of 1,000 kills, and parked.
import { ErrorCode, type OutliveError } from "../../job/errors.ts";
import type { BrokerNews, Consumer, Verdict } from "../../stores/broker.ts";
import { after, type Channel, deadline, isLate, type Link, openChannel } from "./connection.ts";
import { answer, deliveryOf, handled, timesDelivered } from "./handling.ts";

/** How often an empty queue is checked. What comes here was in hand of several dead processes, and is not in a hurry. */
export const POLL_MS = 1_000;
/** After the broker has refused or ended the channel. */
const RETRY_MS = 1_000;

export class Pulling {
  readonly #link: Link;
  readonly #shown: string;
  readonly #consumer: Consumer;
  readonly #news: (news: BrokerNews) => void;
  /** It takes nothing more, and what waits for a time ends. */
  readonly #ended = new AbortController();
  readonly #running: Promise<void>;
  #channel: Channel | null = null;
  #refusals = 0;

  constructor(link: Link, shown: string, consumer: Consumer, signal: AbortSignal, news: (news: BrokerNews) => void) {
    [this.#link, this.#shown, this.#consumer, this.#news] = [link, shown, consumer, news];
    if (signal.aborted) this.lose();
    else signal.addEventListener("abort", () => this.lose(), { once: true, signal: this.#ended.signal });
    this.#running = this.#run();
  }

  get kind(): string {
    return this.#consumer.kind;
  }

  get prefetch(): number {
    return this.#consumer.prefetch;
  }

  lose(): void {
    this.#ended.abort();
  }

  /** Takes nothing more. What is being handled is acknowledged. */
  async stop(): Promise<void> {
    this.#ended.abort();
    await this.#running;
    const channel = this.#channel;
    if (channel) await deadline(channel.close(), this.#shown, "closing a channel").catch(() => {});
  }

  end(): Promise<void> {
    return this.stop();
  }

  async #run(): Promise<void> {
    const { signal } = this.#ended;
    while (!signal.aborted) {
      try {
        await this.#takeAll();
      } catch (thrown) {
        if (signal.aborted) return;
        if (isLate(thrown)) return this.#link.destroy();
        const { code, message } = thrown as OutliveError;
        if (code === ErrorCode.brokerRefused && ++this.#refusals === 2)
          this.#news({
            state: "refused",
            text: `${this.#consumer.queue} is not consumed, and is tried again: ${message}`,
          });
      }
      await after(RETRY_MS, signal);
    }
  }

  /** Until this queue is ended, or its channel. */
  async #takeAll(): Promise<void> {
    const { signal } = this.#ended;
    const { queue, pulls } = this.#consumer;
    let isOpen = true;
    const channel = await openChannel(
      this.#link,
      this.#shown,
      (model) => model.createChannel(),
      () => (isOpen = false),
    );
    this.#channel = channel;
    await after(pulls!.restMs, signal);
    while (isOpen && !signal.aborted) {
      const isThere = await this.#hasMessages(channel);
      if (this.#refusals > 1) this.#news({ state: "connected", text: `consumes ${queue} from ${this.#shown}` });
      this.#refusals = 0;
      if (!isThere || !(await this.#takeOne(channel))) await after(POLL_MS, signal);
    }
  }

  async #hasMessages(channel: Channel): Promise<boolean> {
    const { queue } = this.#consumer;
    return (await deadline(channel.checkQueue(queue), this.#shown, `checking ${queue}`)).messageCount > 0;
  }

  /** False: another process was faster. */
  async #takeOne(channel: Channel): Promise<boolean> {
    const { signal } = this.#ended;
    const { pulls, queue } = this.#consumer;
    const taken = await pulls!.whenFree(async () => {
      if (signal.aborted) return null;
      const doing = `taking a message of ${queue}`;
      const message = await deadline(channel.get(queue, { noAck: false }), this.#shown, doing);
      if (message === false) return null;
      const deliveries = [deliveryOf(message, timesDelivered(message))];
      return { message, deliveries, verdicts: await this.#consumer.handle(deliveries).catch(() => null) };
    });
    if (taken === null) return false;
    const { message, deliveries } = taken;
    // Each further attempt waits until the process is free again. During the pauses it is free for others, which may take as long as the blob store is away.
    const again = async (): Promise<readonly Verdict[]> =>
      (await pulls!.whenFree(async () => (signal.aborted ? null : this.#consumer.handle(deliveries)))) ?? ["requeue"];
    const [verdict = "requeue"] = taken.verdicts ?? (await handled({ handle: again }, deliveries, signal)) ?? [];
    // One that stays in hand holds up no other: the next one is asked for.
    if (verdict !== "keep") answer(channel, message, verdict);
    return true;
  }
}
