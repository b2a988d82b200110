// Publishes on a connection of its own: an alarm of the broker blocks the connection that publishes, and must not block the one that consumes. A
// message is sent when it was confirmed and not returned: of one that no queue takes, the return comes first and then a confirmation.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { OutgoingMessage, WiredKind } from "../../stores/broker.ts";
import { type Address, type ConfirmChannel, connect, deadline, type Link, openChannel, worded } from "./connection.ts";
import { declareKind, declareOwn, deleteOwn } from "./topology.ts";

interface PublishingChannel {
  readonly link: Link;
  readonly channel: ConfirmChannel;
}

export class Publisher {
  readonly #address: Address;
  #opening: Promise<PublishingChannel> | null = null;
  readonly #returned = new Map<string, string>();
  readonly #declared = new Set<string>();

  constructor(address: Address) {
    this.#address = address;
  }

  async publish({ target, body, messageId, headers }: OutgoingMessage): Promise<void> {
    const { shown } = this.#address;
    const { channel } = await this.#open();
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
          const why = this.#returned.get(messageId);
          this.#returned.delete(messageId);
          if (error) return reject(worded(shown, `publishing to ${where}`, error));
          if (why === undefined) return resolve();
          reject(
            new OutliveError(
              ErrorCode.brokerUnroutable,
              `${shown} returned the message ${messageId} for ${where}: ${why}.`,
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
    const { channel } = await this.#open();
    const { shown } = this.#address;
    const name = `${wired.kind} ${wired.queues}`;
    if (!this.#declared.has(name)) {
      await declareKind(channel, shown, wired);
      this.#declared.add(name);
    }
    await declareOwn(channel, shown, wired, collection);
  }

  async delete(wired: WiredKind, collection: string): Promise<void> {
    if (wired.queues === "shared") return;
    const { channel } = await this.#open();
    await deleteOwn(channel, this.#address.shown, wired, collection);
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
    channel.on("return", ({ properties, fields }) => {
      const { replyText = "it is not routed" } = fields as { replyText?: string };
      this.#returned.set(String(properties.messageId), replyText);
    });
    return { link, channel };
  }

  #drop(): void {
    const opening = this.#opening;
    this.#opening = null;
    this.#declared.clear();
    void opening?.then(({ link }) => link.destroy()).catch(() => {});
  }
}
