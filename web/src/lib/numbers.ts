// Numbers as a reader wants them.

/** A number with about four figures: 0.1234, 1,234, 1.2e-7. */
export function show(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return minus(value.toExponential(2).replace("e+", "e"));
  if (Number.isInteger(value)) return minus((value || 0).toLocaleString("en-US")); // no −0
  const places = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return minus(value.toLocaleString("en-US", { maximumFractionDigits: places }));
}

const minus = (text: string): string => text.replace("-", "−");

export function percent(share: number): string {
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value > 0 && value < 0.01) return "< 0.01 %";
  return `${value.toFixed(value < 1 ? 2 : value < 99.95 ? 1 : 0)} %`;
}

/** A probability after sampling settings; the model's own follows in brackets where it reads differently. */
export function sampledPercent(sampled: number, own: number): string {
  const [shown, raw] = [percent(sampled), percent(own)];
  return shown === raw ? shown : `${shown} (${raw})`;
}

export function byteSize(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit]}`;
}

/** 12.3 k, 4.56 M, 7.89 G: for counts of operations. */
export function compact(count: number): string {
  const units = ["", "k", "M", "G", "T", "P"];
  let value = Math.abs(count);
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const text = unit === 0 ? String(Math.round(value)) : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
  return `${count < 0 ? "−" : ""}${text}${unit ? ` ${units[unit]}` : ""}`;
}

/** A number beside an axis: as `show`, but 20 M for 20,000,000. */
export function tick(value: number): string {
  const size = Math.abs(value);
  return size >= 1e6 && size < 1e18 ? compact(value).replace(/\.0+(?= |$)/, "") : show(value);
}

export function duration(milliseconds: number): string {
  if (milliseconds < 1000) return `${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 59.5) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const whole = Math.round(seconds);
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h${whole % 3600 >= 60 ? ` ${Math.floor((whole % 3600) / 60)} min` : ""}`;
  return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
}
