// Connections to RabbitMQ: opened with a deadline, with listeners for errors before anything is awaited, because an error without one ends the
// process. Every call has a deadline, too: a queue without a leader neither responds nor fails. What fails is worded here.
import type { Channel, ChannelModel, ConfirmChannel } from "amqplib";
import { ErrorCode, OutliveError } from "../../job/errors.ts";

export type { Channel, ChannelModel, ConfirmChannel };

/** How long a broker may take to respond to one call. */
const CALL_MS = 10_000;
const CONNECT_MS = 10_000;

export interface Address {
  readonly url: string;
  /** Without the password. */
  readonly shown: string;
  readonly heartbeatSeconds: number;
}

/** A connection, and a promise that resolves with the reason when it has ended, however that came. */
export interface Link {
  readonly model: ChannelModel;
  readonly ended: Promise<string>;
  /** Ends it without waiting for the broker. */
  destroy(): void;
}

export async function connect({ url, shown, heartbeatSeconds }: Address, what: string): Promise<Link> {
  const amqplib = await load();
  const address = new URL(url);
  address.searchParams.set("heartbeat", String(heartbeatSeconds));
  let model: ChannelModel;
  try {
    model = await amqplib.connect(address.href, {
      timeout: CONNECT_MS,
      clientProperties: { connection_name: `outlive ${what}` },
    });
    // Ended in the packet that opened it, before anything could listen: nothing would report that again.
    if (internals(model).stream.writableEnded) throw new Error("the broker closed the connection at once");
  } catch (thrown) {
    throw worded(shown, "connecting", thrown);
  }
  let end: (why: string) => void = () => {};
  const ended = new Promise<string>((resolve) => (end = resolve));
  let why = "the connection was closed";
  model.on("error", (error: Error) => (why = error.message));
  model.on("close", () => end(why));
  let isDestroyed = false;
  return {
    model,
    ended,
    destroy() {
      end(why);
      // Closing closes the channels, whose ends ask for it again: a second request to close would end the first one half-way.
      if (isDestroyed) return;
      isDestroyed = true;
      // A broker that does not respond does not respond to the request to close either. Then the timers of the heartbeat are left, and would hold the process.
      const { stream, heartbeater } = internals(model);
      void Promise.race([closing(model), after(1_000)]).finally(() => {
        heartbeater?.clear();
        stream.destroy();
      });
    },
  };
}

/** What amqplib keeps of a connection, beyond its types. */
interface Internals {
  readonly stream: { readonly writableEnded: boolean; destroy(): void };
  readonly heartbeater?: { clear(): void };
  /** By their numbers; null: it has ended. */
  readonly channels: readonly ({ readonly channel: object } | null)[];
}

function internals({ connection }: ChannelModel): Internals {
  return connection as unknown as Internals;
}

async function closing(model: ChannelModel): Promise<void> {
  try {
    await model.close();
  } catch {
    // It has ended.
  }
}

/**
 * A channel of a connection. One that ends with an error ends nothing else, and says so to `onEnd`. It is listened to before it is open: its end may come in
 * the packet that opens it, and an error that nothing listens to would end the whole connection.
 */
export async function openChannel<C extends Channel>(
  link: Link,
  shown: string,
  make: (model: ChannelModel) => Promise<C>,
  onEnd: (why: string) => void,
): Promise<C> {
  const { channels } = internals(link.model);
  const others = new Set(channels.map((one) => one?.channel));
  const opening = make(link.model);
  const opened = channels.find((one) => one && !others.has(one.channel))?.channel as C | undefined;
  let [why, isEnded] = ["the channel was closed", false];
  opened?.on("error", (error: Error) => (why = error.message));
  opened?.on("close", () => {
    isEnded = true;
    onEnd(why);
  });
  const channel = await deadline(opening, shown, "opening a channel");
  if (isEnded) throw worded(shown, "opening a channel", new Error(why));
  return channel;
}

export async function deadline<T>(call: Promise<T>, shown: string, doing: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(
        new OutliveError(
          ErrorCode.brokerUnreachable,
          `${shown} has not responded for ${CALL_MS} ms while ${doing}.`,
          "A queue without a leader does that, for instance after its broker was killed while it was new. It is tried again; `rabbitmq-queues quorum_status` shows the queue.",
          { broker: shown, doing, isLate: true },
        ),
      );
    }, CALL_MS);
  });
  try {
    return await Promise.race([call, late]);
  } catch (thrown) {
    throw worded(shown, doing, thrown);
  } finally {
    clearTimeout(timer);
    call.catch(() => {});
  }
}

/** Whether the broker has not responded in time: what the connection does next is unknown. */
export function isLate(thrown: unknown): boolean {
  return thrown instanceof OutliveError && thrown.data["isLate"] === true;
}

/** An error of the driver as one of ours. */
export function worded(shown: string, doing: string, thrown: unknown): OutliveError {
  if (thrown instanceof OutliveError) return thrown;
  const { message = String(thrown), code } = thrown as { message?: string; code?: unknown };
  const text = `${message} ${String(code)}`;
  const refused = /ACCESS[_-]REFUSED|NOT[_-]ALLOWED|PRECONDITION|NOT[_-]FOUND|ConnectionOpenOk|403|530|406|404/.test(
    text,
  );
  const hint = /PRECONDITION|406/.test(text)
    ? "A queue or exchange of this name exists with other arguments. Delete it when it is empty, or give the kind another name."
    : /ACCESS|403/.test(text)
      ? "Check user, password and permissions: configure, write and read on names that begin with outlive."
      : /NOT_ALLOWED|ConnectionOpenOk|530/.test(text)
        ? "Check the virtual host at the end of the address."
        : /NOT[_-]FOUND|404/.test(text)
          ? "Declare the queue or exchange, or correct its name."
          : "Check the address, and whether the broker runs. It is tried again.";
  return new OutliveError(
    refused ? ErrorCode.brokerRefused : ErrorCode.brokerUnreachable,
    `${shown} failed while ${doing}: ${message}`,
    hint,
    { broker: shown, doing },
    { cause: thrown },
  );
}

export function after(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** What is used of the package. It is CommonJS: some loaders hand out its exports as `default`. */
interface Amqplib {
  connect(url: string, options: object): Promise<ChannelModel>;
}

async function load(): Promise<Amqplib> {
  try {
    const module = (await import("amqplib")) as Amqplib & { readonly default?: Amqplib };
    return module.default ?? module;
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.driverMissing,
      "RabbitMQ needs the package `amqplib`, which is not installed.",
      "Run `npm install amqplib` in this program.",
      {},
      { cause: thrown },
    );
  }
}
