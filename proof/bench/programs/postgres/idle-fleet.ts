// Idle workers at the default settings: real engines, each with its own connections, session and maintenance, that share one process and a clock that runs
// faster, so that a few seconds hold many of their rounds.
import { contractsOf } from "../../../../src/engine/client.ts";
import { Engine } from "../../../../src/engine/engine.ts";
import { engineSettings, settingsWithDefaults } from "../../../../src/engine/options.ts";
import { EventBus } from "../../../../src/job/events.ts";
import { toStoredError } from "../../../../src/job/errors.ts";
import type { Clock } from "../../../../src/job/time.ts";
import { systemClock, systemRandom as random } from "../../../../src/platform/clock.ts";
import { checkProcess, processIdentity } from "../../../../src/platform/identity.ts";
import { addressOf } from "../../../../src/stores/postgres/address.ts";
import { openPostgres } from "../../../../src/stores/postgres/open.ts";
import { given, serve } from "../../program.ts";
import { noop } from "../noop.ts";

const { url, speed } = given<{ url: string; speed: number }>();
noop.handle(() => {});
const fast: Clock = {
  ...systemClock,
  mono: () => systemClock.mono() * speed,
  after: (ms, task) => systemClock.after(ms / speed, task),
};
const settings = engineSettings({}, "postgres");
const contracts = contractsOf([noop]);
const identity = processIdentity();
const engines: Engine[] = [];
/** A function among the options keeps the maintenance in this thread, where it has the fast clock. */
const inThisThread = { staysHere: () => true };

async function start(): Promise<void> {
  const bus = new EventBus(toStoredError);
  const address = addressOf(url, { connections: 1 });
  const backend = await openPostgres(
    { clock: fast, random, events: bus },
    { ...address, client: { ...address.client, ...inThisThread } },
    { durability: "full" },
  );
  const { clock = fast } = backend;
  const processState = checkProcess;
  const engine = new Engine({ backend, settings, contracts, clock, random, bus, identity, processState });
  await backend.store.declare([settingsWithDefaults(contracts.get(noop.name)!, settings)]);
  await engine.start();
  engines.push(engine);
}

serve({
  grow: async ({ to }: { to: number }) => {
    await start();
    await Promise.all(Array.from({ length: to - engines.length }, start));
    return engines.length;
  },
});
