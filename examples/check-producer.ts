// Checks a producer in any language against the wire of docs/collections.md: listens next to the real queues while the producer sends one
// collection, says what is wrong with each message, and ends when the set is complete or nothing has come for a while.
//
//   node check-producer.ts amqp://localhost scan [--idle 10]     exit code 0: everything was as it should be
//
// What no receiver can see: whether messages were sent with `mandatory`, and whether confirms were waited for.
import { createHash } from "node:crypto";
import { parseArgs } from "node:util";
import amqplib from "amqplib";

const EXCHANGE = "outlive.collections";
const MAX_BYTES = 16 * 1024 * 1024;

/** What was seen of one collection. */
export class SeenCollection {
  readonly problems: string[] = [];
  readonly #expected = new Map<string, number>();
  readonly #parts = new Map<string, Map<number, string>>();

  /** One message; its body and what AMQP says of it. */
  see(key: "part" | "header", body: Buffer, headers: Record<string, unknown>, deliveryMode: unknown): void {
    const wrong = (what: string): void => void this.problems.push(`${key} message: ${what}`);
    if (deliveryMode !== 2) wrong("it is not persistent (delivery mode 2): a restart of the broker loses it");
    if (typeof headers["outlive-collection"] !== "string") wrong("it has no header outlive-collection with a text");
    if (key === "header") return this.#announce(body, wrong);
    const [series, ordinal] = [headers["outlive-series"], Number(headers["outlive-ordinal"])];
    if (typeof series !== "string") return wrong("it has no header outlive-series with a text");
    if (!Number.isSafeInteger(ordinal) || ordinal < 1)
      return wrong(
        `outlive-ordinal is ${JSON.stringify(headers["outlive-ordinal"] ?? null)} and not a whole number from 1`,
      );
    if (body.length > MAX_BYTES) wrong(`it has ${body.length} bytes; RabbitMQ 4 takes 16 MiB by default`);
    const hash = createHash("sha256").update(body).digest("hex");
    const stated = headers["outlive-sha256"];
    if (stated !== undefined && stated !== hash) wrong("its bytes do not have the hash of outlive-sha256");
    const known = this.#parts.get(series) ?? new Map<number, string>();
    this.#parts.set(series, known);
    if (known.has(ordinal) && known.get(ordinal) !== hash)
      wrong(`${series} ${ordinal} came with other bytes than before: a repetition must be the same`);
    known.set(ordinal, hash);
    const last = headers["outlive-last"];
    if (headers["outlive-total"] !== undefined) this.#expect(series, Number(headers["outlive-total"]), wrong);
    else if (last === true || last === 1 || last === "true") this.#expect(series, ordinal, wrong);
  }

  /** What is left to say at the end; nothing: every announced series is complete. */
  missing(): string[] {
    if (this.#expected.size === 0) return ["no series was announced, by a header or by outlive-total or outlive-last"];
    return [...new Set([...this.#expected.keys(), ...this.#parts.keys()])].flatMap((series) => {
      const expected = this.#expected.get(series);
      const have = this.#parts.get(series) ?? new Map<number, string>();
      if (expected === undefined) return [`the series ${series} was not announced`];
      const beyond = [...have.keys()].filter((ordinal) => ordinal > expected);
      const lacking = expected + beyond.length - have.size;
      return [
        ...(beyond.length > 0 ? [`${series} ${beyond[0]} is beyond the ${expected} parts that were announced`] : []),
        ...(lacking > 0 ? [`the series ${series} lacks ${lacking} of ${expected} parts`] : []),
      ];
    });
  }

  #announce(body: Buffer, wrong: (what: string) => void): void {
    let series: unknown;
    try {
      ({ series } = JSON.parse(body.toString()) as { series?: unknown });
    } catch {
      return wrong("its body is not JSON");
    }
    if (typeof series !== "object" || series === null) return wrong('its body is not {"series":{"NAME":COUNT}}');
    for (const [name, count] of Object.entries(series)) this.#expect(name, Number(count), wrong);
  }

  #expect(series: string, count: number, wrong: (what: string) => void): void {
    if (!Number.isSafeInteger(count) || count < 0) return wrong(`it announces ${series} with ${count} parts`);
    const known = this.#expected.get(series);
    if (known !== undefined && known !== count)
      wrong(`it announces ${series} with ${count} parts, and ${known} before`);
    this.#expected.set(series, known ?? count);
  }
}

async function check(url: string, kind: string, idleMs: number): Promise<boolean> {
  const model = await amqplib.connect(url);
  const channel = await model.createChannel();
  await channel.assertExchange(EXCHANGE, "topic", { durable: true });
  // A queue of its own, next to the real ones: their consumers get every message, too.
  const { queue } = await channel.assertQueue("", { exclusive: true });
  for (const key of ["part", "header"]) await channel.bindQueue(queue, EXCHANGE, `${kind}.${key}`);
  const collections = new Map<string, SeenCollection>();
  await new Promise<void>((resolve) => {
    let timer = setTimeout(resolve, idleMs);
    void channel.consume(
      queue,
      (message) => {
        if (!message) return resolve();
        clearTimeout(timer);
        const headers = message.properties.headers ?? {};
        const id = String(headers["outlive-collection"] ?? "(without outlive-collection)");
        const seen = collections.get(id) ?? new SeenCollection();
        collections.set(id, seen);
        const key = message.fields.routingKey === `${kind}.header` ? "header" : "part";
        seen.see(key, message.content, headers, message.properties.deliveryMode);
        timer = setTimeout(resolve, seen.missing().length === 0 ? 500 : idleMs);
      },
      { noAck: true },
    );
    console.log(`listens for ${kind}; let the producer send one collection`);
  });
  await model.close();
  if (collections.size === 0)
    console.log(`nothing came to the exchange ${EXCHANGE} with the keys ${kind}.part and ${kind}.header`);
  let isGood = collections.size > 0;
  for (const [id, seen] of collections) {
    const problems = [...seen.problems, ...seen.missing()];
    isGood &&= problems.length === 0;
    console.log(problems.length === 0 ? `${id}: as it should be` : [`${id}:`, ...problems].join("\n  "));
  }
  return isGood;
}

if (import.meta.main) {
  const options = { idle: { type: "string", default: "10" } } as const;
  const { positionals, values } = parseArgs({ allowPositionals: true, options });
  const [url, kind] = positionals;
  if (url === undefined || kind === undefined)
    throw new Error("Use: node check-producer.ts amqp://... KIND [--idle SECONDS]");
  process.exitCode = (await check(url, kind, Number(values.idle) * 1_000)) ? 0 : 1;
}
