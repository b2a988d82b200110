// RabbitMQ as the port of brokers: one connection that consumes and one that publishes, both made when they are needed.
import type { NamedKind } from "../../job/contract.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type {
  Broker,
  BrokerNews,
  ConsumedQueue,
  Consumption,
  OutgoingMessage,
  Wire,
  WiredKind,
} from "../../stores/broker.ts";
import type { Address } from "./connection.ts";
import { RabbitmqConsumption } from "./consumption.ts";
import { Publisher } from "./publisher.ts";
import { wireOf } from "./topology.ts";

/** Options of `rabbitmq()`. */
export interface RabbitmqOptions {
  /** How often broker and client show each other that they live, in seconds. After two missed ones the connection has ended. Default 10; from 1 to 60. */
  readonly heartbeat?: number;
}

/** Options of `consume`. */
export interface ConsumeOptions {
  /** How many messages of the queue one process holds in memory. One that becomes a job has at most 1 MiB; lower this for a queue that brings larger ones, which are parked. Default 100; from 1 to 1000. */
  readonly prefetch?: number;
}

/** A RabbitMQ broker by its address, `amqp://user:password@host/vhost`. Nothing is connected before the first use. */
export function rabbitmq(url: string, { heartbeat = 10 }: RabbitmqOptions = {}): Rabbitmq {
  return new Rabbitmq(url, heartbeat);
}

/** A connection to RabbitMQ, made by `rabbitmq()`. */
export class Rabbitmq implements Broker {
  readonly place: string;
  readonly consumes: ConsumedQueue[] = [];
  readonly #address: Address;
  readonly #publisher: Publisher;

  /** @internal */
  constructor(url: string, heartbeatSeconds: number) {
    const address = parsed(url);
    if (address === null || !Number.isInteger(heartbeatSeconds) || heartbeatSeconds < 1 || heartbeatSeconds > 60)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        address === null
          ? "The address of RabbitMQ can't be read."
          : `The heartbeat of RabbitMQ is ${heartbeatSeconds} seconds.`,
        'Use an address such as "amqp://user:password@host:5672/vhost", and a heartbeat from 1 to 60 seconds.',
      );
    this.place = `RabbitMQ at ${address.host}${address.pathname === "/" ? "" : address.pathname}`;
    this.#address = { url, shown: this.place, heartbeatSeconds };
    this.#publisher = new Publisher(this.#address);
  }

  /** Messages of this queue become jobs of this kind, whose ids are made of the queue and the message id: one that comes twice is one job. */
  consume(queue: string, kind: NamedKind, { prefetch = 100 }: ConsumeOptions = {}): this {
    if (!Number.isInteger(prefetch) || prefetch < 1 || prefetch > 1_000)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The prefetch of the queue ${queue} is ${JSON.stringify(prefetch)}.`,
        "Use a whole number from 1 to 1000.",
        { queue, prefetch },
      );
    this.consumes.push({ queue, kind, prefetch });
    return this;
  }

  publish(message: OutgoingMessage): Promise<void> {
    return this.#publisher.publish(message);
  }

  wire(kind: WiredKind, collection: string): Wire {
    return wireOf(kind, collection);
  }

  prepare(kind: WiredKind, collection: string): Promise<void> {
    return this.#publisher.declare(kind, collection);
  }

  discard(kind: WiredKind, collection: string): Promise<void> {
    return this.#publisher.delete(kind, collection);
  }

  startConsuming(kinds: readonly WiredKind[], news: (news: BrokerNews) => void): Consumption {
    return new RabbitmqConsumption(this.#address, kinds, news);
  }

  /** Closes both connections. Messages that are not acknowledged are delivered again. */
  close(): Promise<void> {
    return this.#publisher.close();
  }
}

function parsed(url: string): URL | null {
  try {
    const address = new URL(url);
    return /^amqps?:$/.test(address.protocol) ? address : null;
  } catch {
    return null;
  }
}
