// When patterns occur where clocks change: a time that does not exist runs at the first instant after the gap, a time that comes twice runs once, at
// the first, and what is every so many minutes goes on in real time. Held over ten zones, because libraries differ here.
import assert from "node:assert/strict";
import { test } from "node:test";
import { calendarFor } from "../../src/schedules/calendar.ts";

/** The occurrences after an instant, as local date and time with their offset. */
async function occurrences(cron: string, zone: string, after: string, count: number): Promise<string[]> {
  const timing = { cron, zone };
  const { next } = await calendarFor([timing]);
  const local = new Intl.DateTimeFormat("sv-SE", {
    timeZone: zone,
    dateStyle: "short",
    timeStyle: "short",
    hourCycle: "h23",
  });
  const offset = new Intl.DateTimeFormat("en", { timeZone: zone, timeZoneName: "longOffset" });
  const found: string[] = [];
  for (let at = next(timing, Date.parse(after)); at !== null && found.length < count; at = next(timing, at)) {
    const name = offset.formatToParts(at).find(({ type }) => type === "timeZoneName")!.value;
    found.push(`${local.format(at)} ${name.replace("GMT", "") || "+00:00"}`);
  }
  return found;
}

type Row = readonly [what: string, cron: string, zone: string, after: string, expected: readonly string[]];

const TABLE: readonly Row[] = [
  [
    "Berlin, a time in the gap runs at its end, on the same day",
    "30 2 * * *",
    "Europe/Berlin",
    "2026-03-28T12:00:00Z",
    ["2026-03-29 03:00 +02:00", "2026-03-30 02:30 +02:00"],
  ],
  [
    "Berlin, a time that comes twice runs once, the first time",
    "30 2 * * *",
    "Europe/Berlin",
    "2026-10-24T12:00:00Z",
    ["2026-10-25 02:30 +02:00", "2026-10-26 02:30 +01:00"],
  ],
  [
    "New York, hourly through the hour that comes twice: every real hour",
    "0 * * * *",
    "America/New_York",
    "2026-11-01T04:30:00Z",
    ["2026-11-01 01:00 -04:00", "2026-11-01 01:00 -05:00", "2026-11-01 02:00 -05:00"],
  ],
  [
    "New York, every half hour through the gap: every real half hour",
    "*/30 * * * *",
    "America/New_York",
    "2026-03-08T06:15:00Z",
    ["2026-03-08 01:30 -05:00", "2026-03-08 03:00 -04:00", "2026-03-08 03:30 -04:00"],
  ],
  [
    "Cairo, where midnight does not exist: at one o'clock of the same day",
    "0 0 * * *",
    "Africa/Cairo",
    "2026-04-23T12:00:00Z",
    ["2026-04-24 01:00 +03:00", "2026-04-25 00:00 +03:00"],
  ],
  [
    "Santiago, where midnight does not exist",
    "0 0 * * *",
    "America/Santiago",
    "2026-09-05T12:00:00Z",
    ["2026-09-06 01:00 -03:00", "2026-09-07 00:00 -03:00"],
  ],
  [
    "Lord Howe, whose clocks change by half an hour",
    "15 2 * * *",
    "Australia/Lord_Howe",
    "2026-10-03T06:00:00Z",
    ["2026-10-04 02:30 +11:00", "2026-10-05 02:15 +11:00"],
  ],
  [
    "Sydney, the end of summer time in the southern autumn",
    "30 2 * * *",
    "Australia/Sydney",
    "2026-04-04T06:00:00Z",
    ["2026-04-05 02:30 +11:00", "2026-04-06 02:30 +10:00"],
  ],
  [
    "London, every two hours in the gap: the one that does not exist is left out",
    "0 */2 * * *",
    "Europe/London",
    "2026-03-28T23:30:00Z",
    ["2026-03-29 00:00 +00:00", "2026-03-29 02:00 +01:00", "2026-03-29 04:00 +01:00"],
  ],
  [
    "Kathmandu, 45 minutes off the hour, without summer time",
    "0 3 * * *",
    "Asia/Kathmandu",
    "2026-03-28T12:00:00Z",
    ["2026-03-29 03:00 +05:45", "2026-03-30 03:00 +05:45"],
  ],
  [
    "São Paulo, which has no summer time any more",
    "0 0 * * *",
    "America/Sao_Paulo",
    "2026-10-31T12:00:00Z",
    ["2026-11-01 00:00 -03:00", "2026-11-02 00:00 -03:00"],
  ],
  ["UTC", "0 3 29 2 *", "UTC", "2026-03-28T12:00:00Z", ["2028-02-29 03:00 +00:00", "2032-02-29 03:00 +00:00"]],
];

for (const [what, cron, zone, after, expected] of TABLE) {
  test(`${cron} in ${what}`, async () => {
    assert.deepEqual(await occurrences(cron, zone, after, expected.length), expected);
  });
}

test("over a whole year, a daily pattern has one occurrence on each day, in every one of ten zones", async () => {
  const zones = new Set(TABLE.map(([, , zone]) => zone));
  assert.ok(zones.size >= 10);
  for (const zone of zones) {
    const all = await occurrences("30 2 * * *", zone, "2025-12-31T23:59:00Z", 360);
    const days = all.map((text) => text.slice(0, 10));
    assert.equal(new Set(days).size, 360, zone);
  }
});

test("every so long is counted from 1970, and moved by the offset", async () => {
  const timing = { everyMs: 3_600_000, fromMs: 900_000 };
  const { next } = await calendarFor([timing]);
  const at = Date.parse("2026-03-28T12:20:00Z");
  assert.equal(new Date(next(timing, at)!).toISOString(), "2026-03-28T13:15:00.000Z");
  assert.equal(next(timing, Date.parse("2026-03-28T13:15:00Z")), Date.parse("2026-03-28T14:15:00Z"));
  assert.equal(next(timing, Date.parse("2026-03-28T13:14:59.999Z")), Date.parse("2026-03-28T13:15:00Z"));
});
