// Enqueues in the three ways that users do: one after the other, many at once, and in bulk. Each resolves only when it is durable.
import { open } from "../../../src/index.ts";
import { given, serve } from "../program.ts";
import { inputs, noop } from "./noop.ts";

const { url } = given<{ url: string }>();
const engine = await open(url, { jobs: [noop], logger: false });

async function perSecond(count: number, work: () => Promise<unknown>): Promise<number> {
  const from = performance.now();
  await work();
  return (count * 1_000) / (performance.now() - from);
}

async function chain(count: number): Promise<void> {
  for (let n = 0; n < count; n++) await engine.enqueue(noop, { n });
}

/** Each with a key that no job had before. */
const keyed = (count: number, round: number) => (): Promise<{ created: number }> =>
  engine.enqueueMany(noop, inputs(count), { each: ({ n }) => ({ dedupeKey: `${round}/${n}` }) });

serve({
  one: ({ count }: { count: number }) => perSecond(count, () => chain(count)),
  inFlight: ({ count, width }: { count: number; width: number }) =>
    perSecond(count, () => Promise.all(Array.from({ length: width }, () => chain(count / width)))),
  async duplicates({ count, round }: { count: number; round: number }) {
    const fresh = await perSecond(count, keyed(count, round));
    let created = 0;
    const duplicates = await perSecond(count, async () => ({ created } = await keyed(count, round)()));
    if (created > 0) throw new Error("a dedupe key was not held");
    return { fresh, duplicates };
  },
  bulk: ({ count }: { count: number }) => perSecond(count, () => engine.enqueueMany(noop, inputs(count))),
});
