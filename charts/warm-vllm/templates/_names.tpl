{{- define "warm-vllm.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters: a pod's name adds two hashes. */}}
{{- define "warm-vllm.fullname" -}}
{{- $name := include "warm-vllm.name" . }}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- .Values.fullnameOverride | default $full | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* What never changes in a release: a Deployment's selector is immutable. */}}
{{- define "warm-vllm.selectorLabels" -}}
app.kubernetes.io/name: {{ include "warm-vllm.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: engine
{{- end }}

{{- define "warm-vllm.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: promptprefix
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "warm-vllm.labels" -}}
{{ include "warm-vllm.selectorLabels" . }}
{{ include "warm-vllm.commonLabels" . }}
{{- end }}

{{- define "warm-vllm.testLabels" -}}
app.kubernetes.io/name: {{ include "warm-vllm.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end }}

{{- define "warm-vllm.serviceAccountName" -}}
{{- $default := .Values.serviceAccount.create | ternary (include "warm-vllm.fullname" .) "default" }}
{{- .Values.serviceAccount.name | default $default }}
{{- end }}

{{- define "warm-vllm.servedName" -}}
{{- .Values.model.servedName | default .Values.model.name }}
{{- end }}

{{/* Takes (list image appVersion). */}}
{{- define "warm-vllm.image" -}}
{{- $image := index . 0 }}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (index . 1) }}{{ end }}
{{- end }}
