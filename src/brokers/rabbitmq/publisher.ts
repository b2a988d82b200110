// Publishes on a connection of its own: an alarm of the broker blocks the connection that publishes, and must not block the one that consumes. A
// message is sent when it was confirmed and not returned: of one that no queue takes, the return comes first and then a confirmation. Queues are declared
// and deleted on further channels of it, one for each call: a queue that the broker refuses ends its channel, and one without a leader holds up what
// comes behind it there.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { OutgoingMessage, WiredKind } from "../../stores/broker.ts";
import {
  type Address,
  type Channel,
  type ConfirmChannel,
  connect,
  deadline,
  type Link,
  openChannel,
  worded,
} from "./connection.ts";
import { declareKind, declareOwn, deleteOwn } from "./topology.ts";

/** What was published where, and why no queue took it. */
interface Returned {
  readonly key: string;
  readonly why: string;
}

interface PublishingChannel {
  readonly link: Link;
  readonly channel: ConfirmChannel;
  /** Messages that were returned and are not confirmed yet. */
  readonly returned: Returned[];
}

export class Publisher {
  readonly #address: Address;
  #opening: Promise<PublishingChannel> | null = null;
  readonly #declared = new Set<string>();

  constructor(address: Address) {
    this.#address = address;
  }

  async publish({ target, body, messageId, headers }: OutgoingMessage): Promise<void> {
    const { shown } = this.#address;
    const { channel, returned } = await this.#open();
    const isBytes = body instanceof Uint8Array;
    const content = isBytes
      ? Buffer.from(body.buffer, body.byteOffset, body.length)
      : Buffer.from(JSON.stringify(body));
    const [exchange, routingKey] = typeof target === "string" ? ["", target] : [target.exchange, target.routingKey];
    const where = exchange === "" ? `the queue ${routingKey}` : `the exchange ${exchange} with ${routingKey}`;
    await deadline(
      new Promise<void>((resolve, reject) => {
        const options = {
          persistent: true,
          mandatory: true,
          messageId,
          headers: { ...headers },
          contentType: isBytes ? "application/octet-stream" : "application/json",
        };
        const confirmed = (error: unknown): void => {
          // Of equal ones that were returned, each confirmation takes one.
          const key = keyOf(messageId, exchange, routingKey);
          const at = returned.findIndex((one) => one.key === key);
          const [back] = at === -1 ? [] : returned.splice(at, 1);
          if (error) return reject(worded(shown, `publishing to ${where}`, error));
          if (!back) return resolve();
          reject(
            new OutliveError(
              ErrorCode.brokerUnroutable,
              `${shown} returned the message ${messageId} for ${where}: ${back.why}.`,
              "No queue takes it. Declare and bind the queue, or correct the name.",
              { messageId, exchange, routingKey },
            ),
          );
        };
        try {
          channel.publish(exchange, routingKey, content, options, confirmed);
        } catch (thrown) {
          reject(worded(shown, `publishing to ${where}`, thrown));
        }
      }),
      shown,
      `publishing to ${where}`,
    ).catch((thrown: unknown) => {
      // Whether the broker has it is not known, and what else waits on this connection fares no better.
      if (!(thrown instanceof OutliveError && thrown.code === ErrorCode.brokerUnroutable)) this.#drop();
      throw thrown;
    });
  }

  /** The queues of a kind and of one of its collections. */
  async declare(wired: WiredKind, collection: string): Promise<void> {
    const { shown } = this.#address;
    const name = `${wired.kind} ${wired.queues}`;
    if (wired.queues === "shared" && this.#declared.has(name)) return;
    await this.#apart(async (channel) => {
      if (!this.#declared.has(name)) await declareKind(channel, shown, wired);
      this.#declared.add(name);
      await declareOwn(channel, shown, wired, collection);
    });
  }

  async delete(wired: WiredKind, collection: string): Promise<void> {
    if (wired.queues === "shared") return;
    await this.#apart((channel) => deleteOwn(channel, this.#address.shown, wired, collection));
  }

  async #apart(work: (channel: Channel) => Promise<void>): Promise<void> {
    const { shown } = this.#address;
    const { link } = await this.#open();
    const channel = await openChannel(
      link,
      shown,
      (model) => model.createChannel(),
      () => {},
    );
    try {
      await work(channel);
    } finally {
      // Not awaited: behind a call to which the broker has not responded, it waits for that. One that has ended can't be closed.
      void (async () => channel.close())().catch(() => {});
    }
  }

  async close(): Promise<void> {
    const opened = await this.#opening?.catch(() => null);
    this.#opening = null;
    opened?.link.destroy();
    await opened?.link.ended;
  }

  #open(): Promise<PublishingChannel> {
    if (this.#opening) return this.#opening;
    const opening = this.#make();
    this.#opening = opening;
    opening.catch(() => this.#opening === opening && (this.#opening = null));
    return opening;
  }

  async #make(): Promise<PublishingChannel> {
    const { shown } = this.#address;
    const link = await connect(this.#address, "publishes");
    const lost = (): void => {
      this.#drop();
      link.destroy();
    };
    void link.ended.then(lost);
    const channel = await openChannel(link, shown, (model) => model.createConfirmChannel(), lost).catch((thrown) => {
      link.destroy();
      throw thrown;
    });
    const returned: Returned[] = [];
    channel.on("return", ({ properties, fields }) => {
      const { replyText = "it is not routed", exchange, routingKey } = fields as typeof fields & { replyText?: string };
      returned.push({ key: keyOf(properties.messageId, exchange, routingKey), why: replyText });
    });
    return { link, channel, returned };
  }

  #drop(): void {
    const opening = this.#opening;
    this.#opening = null;
    this.#declared.clear();
    void opening?.then(({ link }) => link.destroy()).catch(() => {});
  }
}

function keyOf(messageId: unknown, exchange: string, routingKey: string): string {
  return JSON.stringify([messageId, exchange, routingKey]);
}
