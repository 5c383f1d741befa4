-- Prelude: what a queue knows of its schedules. docs/internals.md, "Periodic schedules".
--
-- Needs _clock, _window, _frame, _job.
--
-- The hash has the field 'version', which rises with every change of a definition, and for each schedule up to four
-- fields of a word, a space and its name: 'code', 'stored' and 'change' are signed and for clients only; 'state' is JSON
-- of texts: token, the job of the next occurrence; print, the fingerprint by which that job was made; fired, the last occurrence
-- that has come; behind, how many missed occurrences were caught up with in a row; early, the occurrences to come whose jobs have
-- left their places: somebody has run them early, or cancelled them. No other definition gives such an occurrence a second job.

-- So many of those are kept, the next ones.
local MOST_EARLY = 50

-- What cannot be read is missing.
local function decode_state(text)
  local is_json, state = pcall(cjson.decode, text or '')
  local found = {}
  if is_json and type(state) == 'table' then
    for _, key in ipairs({ 'token', 'print', 'fired', 'behind', 'early' }) do
      if type(state[key]) == 'string' then found[key] = state[key] end
    end
  end
  return found
end

local function read_state(name)
  return decode_state(redis.call('HGET', keys.schedules, 'state ' .. name))
end

-- A number of the state; nil: it is none of ours, and no client would read it as one.
local function number_in(text)
  return text and #text <= 16 and tonumber(text:match('^%d+$')) or nil
end

-- The last occurrence that has come, epoch ms; 0: none has. One that a clock saw which has been set back since counts as now.
local function fired_by(state, now_ms)
  local fired = number_in(state.fired) or 0
  return fired > now_ms + SKEW_MS and now_ms or fired
end

-- The set of the occurrences to come whose jobs have left their places; they are added to those that are given.
local function read_early(state, early)
  early = early or {}
  for text in (state.early or ''):sub(1, 16 * MOST_EARLY):gmatch('%d+') do
    local occurrence = number_in(text)
    if occurrence then early[occurrence] = true end
  end
  return early
end

-- Note those that come after an occurrence.
local function note_early(state, early, after_ms)
  local occurrences = {}
  for occurrence in pairs(early) do
    if occurrence > after_ms then occurrences[#occurrences + 1] = occurrence end
  end
  table.sort(occurrences)
  for n, occurrence in ipairs(occurrences) do occurrences[n] = decimal(occurrence) end
  state.early = #occurrences > 0 and table.concat(occurrences, ' ', 1, math.min(#occurrences, MOST_EARLY)) or nil
end

local function write_state(name, state)
  redis.call('HSET', keys.schedules, 'state ' .. name, cjson.encode(state))
end

-- The occurrence whose job waits, epoch ms; nil: there is none.
local function occurrence_of(name)
  local occurrence = tonumber(redis.call('ZSCORE', keys.periods, name))
  return occurrence and is_score(occurrence) and occurrence or nil
end

local function read_version()
  return number_in(redis.call('HGET', keys.schedules, 'version')) or 0
end
