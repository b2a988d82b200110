// `open()`: options, store, log and start-up recovery, in that order. It resolves only when recovery is finished.
import { toStoredError } from "../job/errors.ts";
import { EventBus } from "../job/events.ts";
import { systemClock, systemRandom } from "../platform/clock.ts";
import { checkProcess, processIdentity } from "../platform/identity.ts";
import { assertNotBundled } from "../platform/program-file.ts";
import { openBackend, storeAt } from "../stores/registry.ts";
import { attachLog, consoleLogger } from "../telemetry/log.ts";
import { contractsOf } from "./client.ts";
import { type OutliveConfig, resolveCall } from "./config.ts";
import { Engine } from "./engine.ts";
import { settingsWithDefaults } from "./kind-options.ts";
import { type EngineOptions, engineSettings } from "./options.ts";

/**
 * Opens a store: an address such as `sqlite:./jobs.db`, or the configuration that `defineConfig` made. An address is used as it is.
 * A configuration follows the rule of the command line: options of this call win over the environment (`OUTLIVE_STORE`), which wins
 * over the configuration. Creates and migrates the file, recovers the work of workers that died, and only then resolves. A damaged
 * file is repaired as far as `recovery.repair` allows; beyond that it rejects with STORE_DAMAGED, and `readOnly: true` opens it for
 * reading.
 */
export async function open(where: string | OutliveConfig, options: EngineOptions = {}): Promise<Engine> {
  if (options.readOnly === true) return attach(where, options);
  const { engine, declare, abandon } = await make(where, options, true);
  try {
    await declare();
    await engine.operator.recoverAtOpen();
  } catch (thrown) {
    await abandon();
    throw thrown;
  }
  return engine;
}

/** For faces (the CLI, a dashboard): an engine on a store that is there already. Creates, migrates, declares and recovers nothing. */
export async function attach(where: string | OutliveConfig, options: EngineOptions = {}): Promise<Engine> {
  return (await make(where, options, false)).engine;
}

async function make(
  where: string | OutliveConfig,
  given: EngineOptions,
  migrate: boolean,
): Promise<{ engine: Engine; declare: () => Promise<void>; abandon: () => Promise<void> }> {
  const { store: url, options } = resolveCall(where, given);
  const row = storeAt(url);
  const settings = engineSettings(options, row.name);
  if (migrate && !row.isPrivate(url)) assertNotBundled();
  const contracts = contractsOf(options.jobs ?? []);
  const bus = new EventBus(toStoredError);
  if (options.logger !== false) attachLog(bus, options.logger ?? consoleLogger);
  if (options.onEvent) bus.onAny(options.onEvent);
  const identity = processIdentity();
  const deps = { clock: systemClock, random: systemRandom };
  const { readOnly, startUp } = settings;
  const kind = { migrate, startUp, readOnly };
  const { contactMs } = settings.times;
  const backend = await openBackend(url, options, { ...deps, events: bus, bootId: identity.bootId, contactMs }, kind);
  const clock = backend.clock ?? deps.clock;
  const engine = new Engine({
    backend,
    settings,
    contracts,
    ...deps,
    clock,
    bus,
    identity,
    processState: checkProcess,
  });
  const kinds = [...contracts.values()].map((contract) => settingsWithDefaults(contract, settings));
  const abandon = async (): Promise<void> => {
    await backend.opened?.(false);
    await engine.close();
  };
  return { engine, declare: () => backend.store.declare(kinds), abandon };
}
