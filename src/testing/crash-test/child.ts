// The process that is killed: runs one job of the user's module on a scratch store, and kills itself with SIGKILL at the point in its order.
// With no such point it runs to the end and tells every point it passed.
import { closeSync, fsyncSync, openSync, writeSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { Engine } from "../../engine/engine.ts";
import { engineSettings, settingsWithDefaults } from "../../engine/options.ts";
import type { AnyContract } from "../../job/contract.ts";
import { toStoredError } from "../../job/errors.ts";
import { EventBus } from "../../job/events.ts";
import type { JobInfo } from "../../job/job.ts";
import type { Json } from "../../job/json.ts";
import { awaitedAt } from "../../job/waits.ts";
import { systemClock as clock, systemRandom as random } from "../../platform/clock.ts";
import { checkProcess, processIdentity } from "../../platform/identity.ts";
import { openBackend } from "../../stores/registry.ts";
import { tellingStore, watchRequests } from "./effects.ts";

/** What the parent says. */
export interface Order {
  readonly url: string;
  readonly module: string;
  readonly kind: string;
  readonly jobId: string;
  /** Null: it has been enqueued already. */
  readonly input: { readonly json: string } | null;
  /** What is sent when the job waits for a signal, by its name. */
  readonly signals: Readonly<Record<string, Json>>;
  /** The how-manieth point ends the process; null: none does. */
  readonly killAt: number | null;
  /** The file into which it writes the point, before that ends it. */
  readonly note: string;
}

/** What the child says. */
export type Message = { readonly point: string } | { readonly ended: string; readonly error: string | null };

main(JSON.parse(process.argv[2]!) as Order).catch((thrown: unknown) => {
  console.error(thrown);
  process.exit(1);
});

async function main(order: Order): Promise<void> {
  const contracts = await contractsOf(order);
  const contract = contracts.get(order.kind)!;
  watchRequests();
  const settings = engineSettings({ heartbeat: { interval: "100ms", lease: "5s", probe: "20ms" }, poll: "50ms" });
  const bus = new EventBus(toStoredError);
  const identity = processIdentity();
  const deps = { clock, random, events: bus, bootId: identity.bootId };
  const backend = await openBackend(order.url, {}, deps, { ...settings, migrate: true });
  let passed = 0;
  const store = tellingStore(backend.store, order.jobId, (point) => {
    if (passed++ === order.killAt) {
      leave(order.note, point);
      process.kill(process.pid, "SIGKILL");
    }
    if (order.killAt === null) process.send!({ point } satisfies Message);
  });
  const engine = new Engine({
    backend: { ...backend, store },
    settings,
    contracts,
    clock,
    random,
    bus,
    identity,
    processState: checkProcess,
  });
  await backend.store.declare([...contracts.values()].map((one) => settingsWithDefaults(one, settings)));
  await engine.operator.recoverAtOpen();
  if (order.input) await engine.enqueue(contract, JSON.parse(order.input.json) as never, { id: order.jobId });
  const worker = await engine.start({ concurrency: 1 });
  for (;;) {
    const job = await engine.get(order.jobId);
    if (job && job.state !== "queued" && job.state !== "running") {
      process.send!({ ended: job.state, error: job.error?.message ?? null } satisfies Message);
      break;
    }
    if (job) await sendSignal(job, engine, order.signals);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  await worker.stop();
  await engine.close();
  process.exit(0); // whatever a handler left behind
}

function leave(file: string, text: string): void {
  const note = openSync(file, "wx");
  writeSync(note, text);
  fsyncSync(note);
  closeSync(note);
}

/** Once for each wait: the signal's id is the step at which the job waits. */
async function sendSignal({ id, waitsAt }: JobInfo, engine: Engine, signals: Order["signals"]): Promise<void> {
  const awaited = waitsAt === null ? null : awaitedAt(waitsAt);
  if (awaited?.type !== "signal" || !Object.hasOwn(signals, awaited.name)) return;
  await engine.signal(id, awaited.name, signals[awaited.name], { id: waitsAt! });
}

/** All jobs that the module exports: a parent's children run here, too. */
async function contractsOf({ module, kind }: Order): Promise<ReadonlyMap<string, AnyContract>> {
  const exports = Object.values((await import(pathToFileURL(module).href)) as object).flatMap((value: unknown) =>
    Array.isArray(value) ? (value as unknown[]) : [value],
  );
  const contracts = exports.filter(
    (value): value is AnyContract =>
      typeof value === "object" && typeof (value as AnyContract | null)?.settings?.name === "string",
  );
  const byName = new Map(contracts.map((contract) => [contract.name, contract]));
  if (!byName.get(kind)?.handler) throw new Error(`${module} exports no job named ${kind} with a handler.`);
  return byName;
}
