// What a configuration file and the environment say of `outlive work`: the same values as its flags, which win.
import { graceOf } from "./config.ts";
import type { Duration } from "./core/duration.ts";

/** How `outlive work` runs. */
export interface WorkFileOptions {
  /** Worker processes. Default 1, from 1 to 256. */
  readonly processes?: number;
  /** Jobs at once in each process: a number, or a number per kind. Default 10, from 1 to 10000. */
  readonly concurrency?: number | Readonly<Record<string, number>>;
  /** How long running jobs may finish at the end. Default "25s"; with --watch "2s", unless --grace says otherwise. */
  readonly grace?: Duration;
  /** Where /live, /ready and /metrics are served: "127.0.0.1:9090", or "off". Default "off". */
  readonly http?: string;
  /** Default "pretty", "json" with --json. */
  readonly log?: "pretty" | "json";
}

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** `9090` and `:9090` are on the loopback address; any other is named. Null: it is no address. */
export function addressOf(text: string): Address | null {
  const parts = /^(?:(?<host>\[[\da-f:.]+\]|[^:[\]\s]*):)?(?<port>\d{1,5})$/i.exec(text)?.groups;
  const port = Number(parts?.["port"]);
  if (!parts || port > 65_535) return null;
  return { host: parts["host"]?.replaceAll(/[[\]]/g, "") || "127.0.0.1", port };
}

/** `50`, or `mail=5,render=2`. Null: it is neither. */
export function concurrencyOf(text: string): number | Readonly<Record<string, number>> | null {
  if (/^\d+$/.test(text)) return Number(text);
  const pairs = text.split(",").map((pair) => /^([^=]+)=(\d+)$/.exec(pair.trim()));
  return pairs.includes(null) ? null : Object.fromEntries(pairs.map((pair) => [pair![1]!, Number(pair![2])]));
}

const within = (value: unknown, most: number): boolean =>
  Number.isInteger(value) && (value as number) >= 1 && (value as number) <= most;

/** For each value: what it becomes (undefined: it is unusable), and what would be usable. */
export const WORK_VALUES: Readonly<
  Record<keyof WorkFileOptions, { readonly hint: string; readonly read: (value: unknown) => unknown }>
> = {
  processes: {
    hint: "Use a whole number from 1 to 256.",
    read: (value) => (within(value, 256) ? value : undefined),
  },
  concurrency: {
    hint: "Use a whole number from 1 to 10000, or one per kind (in a variable: mail=5,render=2).",
    read: (value) => {
      const said = typeof value === "string" ? concurrencyOf(value) : value;
      const numbers: unknown[] = typeof said === "object" && said !== null ? Object.values(said) : [said];
      return numbers.length > 0 && numbers.every((n) => within(n, 10_000)) ? said : undefined;
    },
  },
  grace: {
    hint: 'Use a number and a unit, for instance "25s"; at most 24d.',
    read: (value) => {
      try {
        graceOf(value as Duration);
        return value;
      } catch {
        return undefined;
      }
    },
  },
  http: {
    hint: 'Use "HOST:PORT", for example "127.0.0.1:9090", or "off".',
    read: (value) => {
      const text = typeof value === "number" || typeof value === "string" ? String(value) : "";
      return text === "off" || addressOf(text) ? text : undefined;
    },
  },
  log: { hint: "Use pretty or json.", read: (value) => (value === "pretty" || value === "json" ? value : undefined) },
};
